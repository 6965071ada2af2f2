"""Check that a checkpoint file is safe to load: tensors and plain containers only.

`read` is the only entry. torch's `weights_only` runs no code of a file. fairseq, however, hands
options to OmegaConf, which fills in `${oc.env:HOME}`, and it calls `eval` on some texts. So an
option of a file must refer to nothing, and an evaluated one must be a literal. The annotations here
describe every other value that code relies on.
"""

import ast
import os
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NoReturn, Required

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints.checksum import is_archive
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.typed import OR_LIST, Name, Rule, Text, between, fault, mapping

# Options that fairseq evaluates to build a file's model or task; `encoder_` may precede a name.
_EVALUATED = (
    "xformers_att_config",
    "adaptive_softmax_cutoff",
    "left_pad_source",
    "left_pad_target",
)
# fairseq looks for a file with the name in one of these options.
_REGISTRIES = (
    "scoring",
    "tokenizer",
    "bpe",
    "optimizer",
    "lr_scheduler",
    "criterion",
    "simul_type",
)
_NAME = re.compile(r"[\w-]*")

Count = Annotated[int, between(0, 10**15)]
Epoch = Annotated[int, between(0, 10**6)]
Some = Annotated[int, between(1, 10**9)]
Scalar = Annotated[
    Tensor, Rule("a number", lambda value: value.numel() == 1 and not value.is_complex())
]
Number = float | Scalar
Amount = Annotated[Number, Rule("a finite number from 0", lambda value: 0 <= value < 1e308)]
Share = Annotated[float, Rule("a number from 0 to below 1", lambda value: 0 <= value < 1)]
Pair = Annotated[Name, Rule("a pair of languages", lambda value: "-" in value)]
Bytes = Annotated[
    Tensor,
    Rule("a row of bytes", lambda value: value.dim() == 1 and str(value.dtype) == "torch.uint8"),
]
Tensors = dict[str, Tensor]


# fairseq instantiates the named class.
Meters = Literal["AverageMeter", "SumMeter", "TimeMeter", "StopwatchMeter", "ConcatTensorMeter"]
Meter = Annotated[tuple[int, Text, Meters, dict[str, Any]], OR_LIST]

Schedule: Any = mapping({"lr": Number, "best": Number | None, "last_epoch": int})
# Bits of a task's examples that were trained on
Seen: Any = mapping({"size": Required[Count], "bits": Required[Bytes]})
# Choices of uncertainty sampling
Selection: Any = mapping(
    {
        "seen": Required[dict[str, Seen]],
        "names": Required[list[Name]],
        "sums": Required[list[list[float]]],
        "updates": Required[Count],
    }
)
# The gates' first weights, and their update
Gates: Any = mapping({"since": Required[Count | None], "start": Required[Tensors]})
Trained: Any = mapping(
    {
        "training_seconds": Required[Amount],
        "training_tokens": Count | None,
        "selection": Selection | None,
        "gates": Gates | None,
    }
)
# Limits of batches
Limits: Any = mapping(
    {
        "max_tokens": Required[Some | None],
        "batch_size": Required[Some | None],
        "required_batch_size_multiple": Required[Some],
    }
)
Earlier: Any = mapping(
    {
        "batches_in_epoch": Required[Count],
        "group_size": Required[Some],
        "batch_limits": Required[Limits],
    }
)
# Position in the training data, fairseq's and ours; `multitask/sampling/saved_plans.py` reads
# `sampling`.
Position: Any = mapping(
    {
        "batch_limits": Limits | None,
        "earlier": list[Earlier],
        "epoch": Required[Epoch],
        "iterations_in_epoch": Count,
        "batches_in_epoch": Count,
        "group_size": Some,
        "shuffle": bool,
        "num_processes": Some,
        "drawn_in_epoch": Epoch | None,
        "seed": Annotated[int, between(0, 2**32 - 10**7)],
        "sampling": dict[str, Any] | None,
    }
)
Extra: Any = mapping(
    {
        "metrics": dict[str, list[Meter]] | None,
        "previous_training_time": Amount,
        "train_iterator": Position | None,
        "epoch": Epoch,
        "batch_offset": Count,
        "val_loss": Number | None,
        "best": Number | None,
        "ema": Tensors | None,
        "ema_fp32_params": Tensors | None,
        "nonfinite": mapping({"total": Count, "in_a_row": Count}),
        "best_measure": dict[str, Text | bool | list[Text]],
        "patience": mapping({"best": Required[Number], "num_runs": Required[Count]}),
        "plateau": mapping({"lr": Amount, "num_bad_epochs": Count}),
        "gate_rate": mapping({"factor": Amount}) | None,
        "TranslationHeatedTask": Trained,
        "GlueTask": Trained,
        "TextToTextTask": Trained,
    }
)
History: Any = mapping(
    {
        "criterion_name": Text,
        "optimizer_name": Text,
        "lr_scheduler_state": Schedule | None,
        "num_updates": Count,
    }
)
Histories = Annotated[list[History], Rule("a list that is not empty", lambda value: len(value) > 0)]
# The loader checks shapes.
Entry: Any = mapping({"step": Amount, "exp_avg": Tensor, "exp_avg_sq": Tensor})
Group: Any = mapping(
    {
        "params": Required[list[Count]],
        "lr": Number | None,
        "betas": Annotated[tuple[Share, Share], OR_LIST],
        "weight_decay": Number,
        # Adafactor has two; torch's sets one itself.
        "eps": Amount | Annotated[tuple[Amount | None, Amount | None], OR_LIST],
        "amsgrad": bool,
    }
)
Optimizer: Any = mapping(
    {"state": Required[dict[Any, Entry]], "param_groups": Required[list[Group]]}
)
End = Annotated[tuple[Annotated[int, between(5, 10**9)], Some], OR_LIST]  # rows and bytes
VocabularySide: Any = mapping({"symbols": Required[list[Name]], "model": Required[Bytes]})
Ids = list[Count]
Factor = Annotated[float, between(-1e6, 1e6)]
# Defaults of `generate` in `transformers`, with its names; ids of tokens are ours
Generation: Any = mapping(
    {
        **dict.fromkeys(("max_length", "max_new_tokens", "min_length", "min_new_tokens"), Count),
        **dict.fromkeys(
            ("num_beams", "num_return_sequences", "no_repeat_ngram_size", "top_k"), Count
        ),
        **dict.fromkeys(("length_penalty", "repetition_penalty", "temperature", "top_p"), Factor),
        **dict.fromkeys(("do_sample", "renormalize_logits", "remove_invalid_values"), bool),
        "early_stopping": bool | Literal["never"],
        **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id"), Count | Ids),
        **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), Ids),
        "bad_words_ids": list[Ids],
    }
)
LanguageTokens = Annotated[tuple[Text | None, Text | None], OR_LIST]
TaskState: Any = mapping(
    {
        "langs": Annotated[list[Name], Rule("a list of languages", lambda value: len(value) > 0)],
        "langtoks": Annotated[
            dict[Name, LanguageTokens],
            Rule("language tokens of `main`", lambda value: "main" in value),
        ],
        "langtoks_specs": list[Name],
        "lang_tok_style": Literal["multilingual", "mbart"],
        "lang_tok_replacing_bos_eos": bool,
        "enable_lang_ids": bool,
        "task_ids": Name,
        "lang_pairs": list[Pair],
        "tokenizer": Name,
        "sentencepiece": Bytes,
        "encoder_langtok_last": bool,
        "new_symbols": Annotated[list[Count], Rule("two numbers", lambda value: len(value) == 2)],
        "generation": Generation | None,
        "vocabulary_ends": dict[Name, Annotated[tuple[End, End], OR_LIST]],
        "vocabulary": Annotated[
            list[VocabularySide],
            Rule("one or two vocabularies", lambda value: 1 <= len(value) <= 2),
        ],
    }
)
# An expert shard has its experts' rows of the tensors.
Checkpoint: Any = mapping(
    {
        "args": Namespace | None,
        "cfg": dict[str, Any] | None,
        "model": Tensors | None,
        "criterion": dict[str, Any] | None,
        "task_state": TaskState | None,
        "extra_state": Extra | None,
        "optimizer_history": Histories | None,
        # `--optimizer composite` has several states.
        "last_optimizer_state": Optimizer | dict[Name, Optimizer | Number] | None,
        "first": Count,
        "count": Count,
        "ema": Tensors,
        "ema_fp32_params": Tensors,
        "optimizer": dict[str, Entry],
    }
)


def read(path: str | Path, file: BinaryIO, mapped: bool = False) -> dict[str, Any]:
    """Return the content of an open file of `torch.save` on the CPU.

    Args:
        path: the file's name, for errors.
        file: the open file.
        mapped: whether tensors are read when they are used.

    Raises:
        UserError: it is no dictionary, or has a forbidden value or option.
        Exception: torch's, for a file that is damaged or would execute something.
    """
    state = _loaded(path, file, mapped and is_archive(file))
    if not isinstance(state, dict):
        _refuse(path, "a checkpoint's dictionary", f"a {type(state).__name__}")
    _check_options(path, state)
    wrong = fault(state, Checkpoint)
    if wrong is not None:
        _refuse(path, f"{wrong.rule} as `{wrong.path}`", wrong.value)
    return state


def _loaded(path: str | Path, file: BinaryIO, mapped: bool) -> Any:
    """Load an open file by torch; mapped files are opened by the descriptor's name."""
    file.seek(0)
    if not mapped:
        return torch.load(file, map_location="cpu", weights_only=True)
    descriptor = f"/proc/self/fd/{file.fileno()}"
    name = descriptor if os.path.exists(descriptor) else str(path)
    try:
        return torch.load(name, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:  # it names the descriptor
        error.args = (str(error).replace(name, str(path)),)
        raise


def _refuse(path: str | Path, rule: str, content: str) -> NoReturn:
    raise UserError(f"`{path}` must contain {rule}, but contains {content}; it was not loaded.")


def leaves(value: Any, name: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield each value in nested containers with its name, and keys; shared ones once."""
    seen = set() if seen is None else seen
    if isinstance(value, Namespace):
        value = vars(value)
    if not isinstance(value, dict | list | tuple | set):
        yield name, value
    elif id(value) not in seen:
        seen.add(id(value))
        if isinstance(value, dict):
            yield from (("", key) for key in value)
            items: Iterable[tuple[Any, Any]] = value.items()
        else:
            items = ((name, inner) for inner in value)
        for key, inner in items:
            yield from leaves(inner, str(key), seen)


def _check_options(path: str | Path, state: dict[str, Any]) -> None:
    """Refuse options that refer to something, or are evaluated and no literals."""
    for name, value in leaves([state.get("cfg"), state.get("args")]):
        if not isinstance(value, str):
            continue
        would_run = name.endswith(_EVALUATED) and not _is_literal(value)
        faults = {
            "name": name in _REGISTRIES and not _NAME.fullmatch(value),
            "plain value": "${" in value,
            "literal, since fairseq executes it": would_run,
        }
        for kind, is_wrong in faults.items():
            if is_wrong:
                rule = f"its `{name}` must be a {kind}, but is {value[:80]!r}"
                raise UserError(
                    f"`{path}` must have options that run no code: {rule}; it was not loaded."
                )


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True
