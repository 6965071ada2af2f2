"""Task heads: from an encoder's hidden states to the numbers of each task.

MT-TaG, §3.3: classes are `softmax(U_t h_[CLS])` (equation 7) and a regression's value is `V_t h_[CLS]` (equation 8),
both from N(0, 0.02²) (§4.4); a ranking scores each candidate. WiC's head reads the mean of its words' states, too.

`transferred` takes a checkpoint of some tasks to a model of others. §5.2: a new task takes the gate of a related one.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor, nn

from fairseq_mtmoe.conditioning import TaskEmbeddings
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.moe.gates import TaskGate

logger = logging.getLogger(__name__)

HEADS = "heads."  # what names of their parameters begin with
HEAD_STD = 0.02
UNREAD = -1e4  # of tokens that a head does not read: it has no part in a softmax, and is finite in every type
NO_TOKEN, NO_WORD = -1, -2  # as the index of a word's first token
NEW = ("per_token", "per_word")  # fields of `HeadSize` since 0.1.5


@dataclass(frozen=True)
class HeadSize:
    """What a task's head reads beside [CLS], and gives for each candidate."""

    num_outputs: int
    num_words: int = 0  # how many words of the text it reads
    has_bias: bool = True  # but in a ranking, where it would be the same for all candidates
    per_token: bool = False  # outputs are for [CLS] and every token of the one part of the text that it reads
    per_word: bool = False  # outputs are for each word of the text, whose number varies


def heads_to_text(sizes: Mapping[str, HeadSize]) -> str:
    """The heads of a model as one option, with what is `NEW` only where it is needed, for older versions."""
    fields = {task: asdict(size) for task, size in sizes.items()}
    return json.dumps({task: {k: v for k, v in of.items() if k not in NEW or v} for task, of in fields.items()})


def heads_from_text(text: str) -> dict[str, HeadSize]:
    """The reverse."""
    return {task: HeadSize(**size) for task, size in json.loads(text).items()}


class TaskHead(nn.Linear):
    """The head of one task."""

    def __init__(self, hidden_size: int, size: HeadSize) -> None:
        super().__init__(hidden_size * (1 + size.num_words), size.num_outputs, size.has_bias)
        nn.init.normal_(self.weight, std=HEAD_STD)
        if size.has_bias:
            nn.init.zeros_(self.bias)
        self.size = size

    def forward(self, hidden: Tensor, rows: Tensor, spans: Tensor) -> Tensor:  # type: ignore[override]
        """The task's numbers for E examples of C candidates, (E, C · outputs); other heads have other shapes.

        Args:
            hidden: the encoder's states of R rows, (R, L, H).
            rows: each candidate's, (E, C); -1, and then the lowest finite number, where others have more candidates.
            spans: of the words, from and to, (E, words, 2); with candidates there are none.
        """
        features = [hidden[:, 0][rows.clamp(min=0).flatten()]]
        if self.size.num_words:
            weights = _within(spans, hidden.shape[1]).to(hidden.dtype) / (spans[..., 1:] - spans[..., :1])
            features.append((weights.to(hidden.dtype) @ hidden[rows.squeeze(1)]).flatten(1))  # each word's mean
        outputs: Tensor = super().forward(torch.cat(features, dim=1))
        outputs = outputs.view(len(rows), rows.shape[1] * self.out_features)
        return outputs if rows.shape[1] < 2 else outputs.masked_fill(rows < 0, torch.finfo(outputs.dtype).min)


class TokenHead(TaskHead):
    """The head of a task that asks something of every token of a part of the text."""

    def __init__(self, hidden_size: int, size: HeadSize) -> None:
        super().__init__(hidden_size, replace(size, num_words=0))
        self.size = size

    def forward(self, hidden: Tensor, rows: Tensor, spans: Tensor) -> Tensor:  # type: ignore[override]
        """The task's numbers for each token of E rows, (E, L, outputs): `UNREAD` but for [CLS] and `spans`."""
        numbers: Tensor = nn.Linear.forward(self, hidden[rows.squeeze(1)])
        is_read = _within(spans, hidden.shape[1]).squeeze(1)
        is_read[:, 0] = True
        return numbers.masked_fill(~is_read.unsqueeze(2), UNREAD)


class WordHead(TaskHead):
    """The head of a task that asks something of each word."""

    def forward(self, hidden: Tensor, rows: Tensor, spans: Tensor) -> Tensor:  # type: ignore[override]
        """The task's numbers for the words of E examples, (E, W, outputs), whose first tokens begin `spans` (E, W, 2).

        There is `NO_TOKEN` for words without one, for which the first output is certain, and `NO_WORD` where others
        have more words, for which all numbers are the lowest that there is.
        """
        first = spans[..., 0]
        numbers: Tensor = nn.Linear.forward(self, hidden[rows, first.clamp(min=0)])
        lowest = torch.finfo(numbers.dtype).min
        numbers = numbers.masked_fill((first < 0).unsqueeze(2), lowest)
        is_first = torch.arange(self.out_features, device=first.device) == 0
        return numbers.masked_fill((first == NO_TOKEN).unsqueeze(2) & is_first, 0)


def _within(spans: Tensor, length: int) -> Tensor:
    """Which of L tokens are in each span, (…, L)."""
    index = torch.arange(length, device=spans.device)
    return (index >= spans[..., :1]) & (index < spans[..., 1:])


class TaskHeads(nn.ModuleDict):
    """The heads of several tasks in the order of the task ids; UserError for a name that no module can have."""

    def __init__(self, hidden_size: int, sizes: Mapping[str, HeadSize]) -> None:
        for task in sizes:
            if not task or "." in task or hasattr(nn.ModuleDict, task):
                rule = "one without dots, and none that torch's modules use themselves"
                raise_invalid("the name of a task", rule, task)
        super().__init__()
        for task, size in sizes.items():
            kind = WordHead if size.per_word else TokenHead if size.per_token else TaskHead
            self[task] = kind(hidden_size, size)

    def forward(self, hidden: Tensor, rows: Mapping[str, Tensor], spans: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each task's numbers, by its name; without examples none, (0, …), but with a graph: all get gradients."""
        no_rows = torch.empty(0, 1, dtype=torch.long, device=hidden.device)
        outputs = {}
        for task, head in self.items():
            assert isinstance(head, TaskHead)
            no_spans = no_rows.new_empty(0, head.size.num_words, 2)
            outputs[task] = head(hidden, rows.get(task, no_rows), spans.get(task, no_spans))
        return outputs


def transferred(model: nn.Module, state: dict[str, Tensor], reuse_gate: str | None = None) -> dict[str, Tensor]:
    """A checkpoint's state for a model of other tasks; the state itself where they are the same.

    Heads of tasks that the model has not are left out. What the checkpoint has not stays as it is, unless `reuse_gate`,
    comma-separated, names the tasks of the checkpoint whose gates' mean all begin with; UserError where it has none.
    """
    own = model.state_dict()
    tasks, known = _tasks(own), _tasks(state)
    if tasks == known or not known:
        return state
    moved = {key: value for key, value in state.items() if not key.startswith(HEADS) or _task(key) in tasks}
    moved |= {key: value for key, value in own.items() if key.startswith(HEADS) and _task(key) not in known}
    gates, embeddings = _weights(model, TaskGate), _weights(model, TaskEmbeddings)
    if gates and reuse_gate:
        logger.info(f"the gates of {', '.join(tasks)} begin as the checkpoint's {reuse_gate} (--reuse-gate)")
    for key in (*gates, *embeddings):
        if key in state and state[key].dim() == own[key].dim():  # else it is of all tasks, and does not fit
            moved[key] = _rows(own[key], tasks, state[key], known, reuse_gate if key in gates else None)
    return moved


def _rows(own: Tensor, tasks: Sequence[str], saved: Tensor, known: Sequence[str], reuse: str | None) -> Tensor:
    """What has a row for each task, such as a layer's gates (T, N, H): those that the checkpoint has are its own."""
    if reuse:
        names = reuse.split(",")
        for name in names:
            if name not in known:
                raise_invalid("--reuse-gate", f"among the checkpoint's tasks {', '.join(known)}", name)
        return saved[[known.index(name) for name in names]].mean(0).expand_as(own).clone()
    rows = [saved[known.index(task)] if task in known else row for task, row in zip(tasks, own, strict=True)]
    return torch.stack([row.to(own) for row in rows])


def _weights(model: nn.Module, kind: type[nn.Module]) -> list[str]:
    """The keys of these modules' weights in the model's state."""
    return [f"{path}.weight" for path, module in model.named_modules() if isinstance(module, kind)]


def _task(key: str) -> str:
    return key.removeprefix(HEADS).rpartition(".")[0]


def _tasks(state: dict[str, Tensor]) -> list[str]:
    """The tasks that a state has heads of, in the order of their ids."""
    return list(dict.fromkeys(_task(key) for key in state if key.startswith(HEADS)))
