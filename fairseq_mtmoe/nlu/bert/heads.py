"""Task heads, which map an encoder's hidden states to the outputs of each task.

Implements MT-TaG, §3.3. Class logits are `U_t h_[CLS]` (equation 7) and a regression's value is
`V_t h_[CLS]` (equation 8), both initialized from N(0, 0.02²) (§4.4). A ranking scores each
candidate. WiC's head also reads the mean states of its words.

`transferred` adapts a checkpoint to a model with other tasks, where a new task can reuse the gate
of a related one (§5.2).
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from fairseq_mtmoe.conditioning import TaskEmbeddings
from fairseq_mtmoe.core.errors import UserError, raise_invalid, shortened
from fairseq_mtmoe.moe import FixedGate, MoELayer, TaskGate

logger = logging.getLogger(__name__)

HEADS = "heads."  # prefix of their parameters' names
HEAD_STD = 0.02
UNREAD = -1e4  # logit of tokens outside the spans: 0 after softmax, and finite in every dtype
NO_TOKEN = -1  # in place of the index of a word's first token, if the word has none


@dataclass(frozen=True)
class HeadSize:
    """Inputs (in addition to [CLS]) and outputs of a task's head."""

    num_outputs: int  # per candidate
    num_words: int = 0  # number of words whose mean states it reads
    has_bias: bool = True  # False in a ranking, where a bias would shift all candidates alike
    per_token: bool = False  # outputs for [CLS] and for every token of one part of the text
    per_word: bool = False  # outputs for each word of the text


def heads_to_text(sizes: Mapping[str, HeadSize]) -> str:
    """Return head sizes in JSON."""
    return json.dumps({task: asdict(size) for task, size in sizes.items()})


def heads_from_text(text: str) -> dict[str, HeadSize]:
    """Return the head sizes that `heads_to_text` wrote."""
    return {task: HeadSize(**size) for task, size in json.loads(text).items()}


class TaskHead(nn.Linear):
    """Head of a task that reads the state of [CLS] and optionally of words."""

    def __init__(self, hidden_size: int, size: HeadSize) -> None:
        num_words = 0 if size.per_token else size.num_words
        super().__init__(hidden_size * (1 + num_words), size.num_outputs, size.has_bias)
        nn.init.normal_(self.weight, std=HEAD_STD)
        if size.has_bias:
            nn.init.zeros_(self.bias)
        self.size = size

    def forward(  # type: ignore[override]
        self, hidden: Tensor, rows: Tensor, spans: Tensor
    ) -> Tensor:
        """Return the outputs of E examples with C candidates, (E, C · outputs).

        Subclasses return other shapes.

        Args:
            hidden: the encoder's states of R rows, (R, L, H).
            rows: the row of each candidate, (E, C), or -1 if the candidate is missing; its output
                is then the lowest finite number.
            spans: start and end of each word, (E, words, 2); no words with candidates.
        """
        features = [hidden[:, 0][rows.clamp(min=0).flatten()]]
        if self.size.num_words:
            weights = _within(spans, hidden.shape[1]).to(hidden.dtype) / (
                spans[..., 1:] - spans[..., :1]
            )
            # The mean state of each word.
            features.append((weights.to(hidden.dtype) @ hidden[rows.squeeze(1)]).flatten(1))
        outputs: Tensor = super().forward(torch.cat(features, dim=1))
        outputs = outputs.view(len(rows), rows.shape[1] * self.out_features)
        if rows.shape[1] < 2:
            return outputs
        return outputs.masked_fill(rows < 0, torch.finfo(outputs.dtype).min)


class TokenHead(TaskHead):
    """The head of a task with outputs for every token of a part of the text."""

    def forward(  # type: ignore[override]
        self, hidden: Tensor, rows: Tensor, spans: Tensor
    ) -> Tensor:
        """Return the outputs of each token of E rows, (E, L, outputs).

        `UNREAD` outside [CLS] and `spans`.
        """
        outputs: Tensor = nn.Linear.forward(self, hidden[rows.squeeze(1)])
        is_read = _within(spans, hidden.shape[1]).squeeze(1)
        is_read[:, 0] = True
        return outputs.masked_fill(~is_read.unsqueeze(2), UNREAD)


class WordHead(TaskHead):
    """The head of a task with outputs for each word."""

    def forward(  # type: ignore[override]
        self, hidden: Tensor, rows: Tensor, spans: Tensor
    ) -> Tensor:
        """Return the outputs of each word's first token, (E, W, outputs).

        spans: start and end of each word, (E, W, 2). A word without tokens, such as one in the
            truncated part of a text, has the start `NO_TOKEN`: its first output is certain. Beyond
            an example's last word the start is -2: all outputs are the lowest number.
        """
        first = spans[..., 0]
        outputs: Tensor = nn.Linear.forward(self, hidden[rows, first.clamp(min=0)])
        lowest = torch.finfo(outputs.dtype).min
        outputs = outputs.masked_fill((first < 0).unsqueeze(2), lowest)
        is_first = torch.arange(self.out_features, device=first.device) == 0
        return outputs.masked_fill((first == NO_TOKEN).unsqueeze(2) & is_first, 0)


def _within(spans: Tensor, length: int) -> Tensor:
    """Return whether each of L tokens is in each span, (…, L)."""
    index = torch.arange(length, device=spans.device)
    return (index >= spans[..., :1]) & (index < spans[..., 1:])


class TaskHeads(nn.ModuleDict):
    """The tasks' heads in the order of the task ids.

    Raises `UserError`: a task's name cannot name a module.
    """

    def __init__(self, hidden_size: int, sizes: Mapping[str, HeadSize]) -> None:
        for task in sizes:
            if not task or "." in task or hasattr(nn.ModuleDict, task):
                rule = "text without dots that is not an attribute of torch's modules"
                raise_invalid("the name of a task", rule, task)
        super().__init__()
        for task, size in sizes.items():
            kind: type[TaskHead] = TaskHead
            if size.per_word:
                kind = WordHead
            elif size.per_token:
                kind = TokenHead
            self[task] = kind(hidden_size, size)

    def forward(
        self, hidden: Tensor, rows: Mapping[str, Tensor], spans: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return each task's outputs by name.

        The outputs of a task without examples are (0, …); they keep its head in the autograd graph.
        """
        no_rows = torch.empty(0, 1, dtype=torch.long, device=hidden.device)
        outputs = {}
        for task, head in self.items():
            assert isinstance(head, TaskHead)
            no_spans = no_rows.new_empty(0, head.size.num_words, 2)
            outputs[task] = head(hidden, rows.get(task, no_rows), spans.get(task, no_spans))
        return outputs


def transferred(
    model: nn.Module, state: dict[str, Tensor], reuse_gate: str | None = None
) -> dict[str, Tensor]:
    """Return a checkpoint's state for a model that may have other tasks.

    Heads of tasks that the model lacks are dropped. Parameters of tasks that the checkpoint lacks
    keep their values.
    reuse_gate: comma-separated tasks of the checkpoint. The mean of their gates (with fixed gates,
        of their experts) initializes the gates of all tasks (UserError: the checkpoint lacks one).
    """
    model_state = model.state_dict()
    tasks = _tasks(model_state)
    saved_tasks = _tasks(state)
    if tasks == saved_tasks or not saved_tasks:
        return state
    moved = {key: value for key, value in model_state.items() if key.startswith(HEADS)}
    for key, value in state.items():
        if key in moved or not key.startswith(HEADS):
            moved[key] = value
    gates = [*_weights(model, TaskGate), *_fixed_experts(model)]
    embeddings = _weights(model, TaskEmbeddings)
    if gates and reuse_gate:
        logger.info(
            f"initialized the gates of {', '.join(tasks)} from the checkpoint's {reuse_gate} "
            "(--reuse-gate)"
        )
    elif reuse_gate:
        logger.warning("--reuse-gate changes nothing: the model's gates are those of all tasks")
    for key in (*gates, *embeddings):
        # Loading refuses experts of other gates.
        if key not in state or len(state[key]) < len(saved_tasks):
            continue
        if state[key].dim() == model_state[key].dim():  # otherwise a single gate serves all tasks
            reuse = reuse_gate if key in gates else None
            moved[key] = _rows(model_state[key], tasks, state[key], saved_tasks, reuse)
    return moved


def _rows(
    initial: Tensor,
    tasks: Sequence[str],
    saved: Tensor,
    saved_tasks: Sequence[str],
    reuse: str | None,
) -> Tensor:
    """Return a tensor with a row per task, such as gates (T, N, H), and possibly more.

    Tasks in the checkpoint get its rows.
    """
    if reuse:
        names = reuse.split(",")
        for name in names:
            if name not in saved_tasks:
                rule = f"among the checkpoint's tasks {shortened(saved_tasks, name)}"
                raise_invalid("--reuse-gate", rule, name)
        reused = [saved_tasks.index(name) for name in names]
        return saved[reused].mean(0).expand_as(initial).clone()
    rows = []
    for task, row in zip(tasks, initial, strict=False):
        rows.append(saved[saved_tasks.index(task)] if task in saved_tasks else row)
    return torch.stack([row.to(initial) for row in [*rows, *initial[len(tasks) :]]])


def _weights(model: nn.Module, kind: type[nn.Module]) -> list[str]:
    """Return the state keys of the weights of all modules of a kind."""
    return [f"{path}.weight" for path, module in model.named_modules() if isinstance(module, kind)]


def _fixed_experts(model: nn.Module) -> list[str]:
    """Return the state keys of experts that belong to one task each."""
    keys = []
    for path, layer in model.named_modules():
        if isinstance(layer, MoELayer) and isinstance(layer.gate, FixedGate):
            if layer.experts.placement.is_sharded:
                raise UserError(
                    "`--expert-gates fixed` cannot be fine-tuned for other tasks in several "
                    "processes: use one process, which has all experts."
                )
            keys += [f"{path}.experts.{name}" for name, _ in layer.experts.named_parameters()]
    return keys


def _tasks(state: dict[str, Tensor]) -> list[str]:
    """Return the tasks whose heads are in a state, in the order of their ids."""
    heads = [key.removeprefix(HEADS) for key in state if key.startswith(HEADS)]
    return list(dict.fromkeys(head.rpartition(".")[0] for head in heads))
