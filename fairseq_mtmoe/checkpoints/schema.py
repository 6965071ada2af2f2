"""What a checkpoint holds, whoever wrote it: one description of every value that somebody relies on, as annotations.

fairseq's options are described by the dataclasses that its models, tasks and the like are registered with, all else
here. What is not named may be anything: nobody reads it.
"""

from __future__ import annotations

import dataclasses
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_type_hints

from torch import Tensor

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.typed import Fault, Name, Rule, Text, between, fault, is_finite, shown, words

Count = Annotated[int, between(0, 10**15)]
Epoch = Annotated[int, between(0, 10**6)]
Some = Annotated[int, between(1, 10**9)]
Scalar = Annotated[Tensor, Rule("a number", lambda value: value.numel() == 1 and not value.is_complex())]
Number = float | Scalar
Amount = Annotated[Number, Rule("a finite number from 0", lambda value: value >= 0 and is_finite(value))]
Share = Annotated[float, Rule("a number from 0 to below 1", lambda value: 0 <= value < 1)]
Pair = Annotated[Name, Rule("a pair of languages", lambda value: "-" in value)]
Bytes = Annotated[Tensor, Rule("a row of bytes", lambda value: value.dim() == 1 and str(value.dtype) == "torch.uint8")]
Tensors = dict[str, Tensor]

_SECTIONS = ("model", "task", "criterion", "common", "dataset", "optimization")
_SCALARS = (bool, int, float, str)
_PLAIN = (*_SCALARS, list, tuple, dict)
_METERS = {"AverageMeter": {"sum", "count"}, "SumMeter": {"sum"}, "TimeMeter": {"init", "n"},
           "StopwatchMeter": {"sum", "n"}}  # fmt: skip


def _is_meter(entry: Any) -> bool:
    _, _, kind, values = entry  # a sum may be of many numbers, such as what BLEU counts
    numbers = {name for name in _METERS.get(kind, ()) if fault(values.get(name), Number | Tensor) is None}
    return kind not in _METERS or (numbers == _METERS[kind] and type(values.get("round")) in (int, type(None)))


Meter = Annotated[
    tuple[
        int,
        Text,
        Literal["AverageMeter", "SumMeter", "TimeMeter", "StopwatchMeter", "ConcatTensorMeter"],
        dict[str, Any],
    ],
    Rule("a meter of fairseq's with its values", _is_meter),
]


class _Placed(TypedDict):
    epoch: Epoch


class Position(_Placed, total=False):
    """A position in the training data, fairseq's and ours."""

    iterations_in_epoch: Count
    batches_in_epoch: Count
    group_size: Some
    shuffle: bool
    num_processes: Some
    drawn_in_epoch: Epoch | None
    seed: Annotated[int, between(0, 2**32 - 10**7)]
    sampling: dict[str, Any] | None  # of which `data/sampling/saved_plans.py` is the reader


class Schedule(TypedDict, total=False):
    """What a schedule of fairseq's goes on from."""

    lr: Number
    best: Number | None
    last_epoch: int


class History(TypedDict, total=False):
    """What was trained with, and how far."""

    criterion_name: Text
    optimizer_name: Text
    lr_scheduler_state: Schedule | None
    num_updates: Count


class Seen(TypedDict):
    """Which of a task's examples were trained on."""

    size: Count
    bits: Bytes


class Selection(TypedDict):
    """What uncertainty sampling chose."""

    seen: dict[str, Seen]
    names: list[Name]
    sums: list[list[float]]
    updates: Count


class _Trained(TypedDict):
    training_seconds: Amount


class Trained(_Trained, total=False):
    """What a task of ours notes of its training."""

    training_tokens: Count | None
    selection: Selection | None
    gates: Gates | None


class Owed(TypedDict):
    """A validation that a signal kept a run from."""

    epoch: Epoch
    end_of_epoch: bool


class Nonfinite(TypedDict, total=False):
    """Updates that were left out."""

    total: Count
    in_a_row: Count


class Rate(TypedDict, total=False):
    """The rate at which gates learn."""

    factor: Amount
    with_blend: bool


class Gates(TypedDict):
    """The gates' first weights, and the update before which they were kept."""

    since: Count | None
    start: Tensors


class Extra(TypedDict, total=False):
    """What is saved beside a model."""

    metrics: dict[str, list[Meter]] | None
    previous_training_time: Amount
    train_iterator: Position | None
    epoch: Epoch
    batch_offset: Count
    val_loss: Number | None
    best: Number | None
    ema: Tensors | None
    ema_fp32_params: Tensors | None
    nonfinite: Nonfinite
    owed_validation: Owed | None
    gate_rate: Rate | None
    TranslationHeatedTask: Trained
    GlueTask: Trained
    TextToTextTask: Trained


class Entry(TypedDict, total=False):
    """What an optimizer knows of a parameter; whether it has the parameter's shape is for who loads it."""

    step: Amount
    exp_avg: Tensor
    exp_avg_sq: Tensor


class _Parameters(TypedDict):
    params: list[Count]


class Group(_Parameters, total=False):
    """An optimizer's options."""

    lr: Number | None
    betas: tuple[Share, Share]
    eps: Amount | tuple[Amount | None, Amount | None]  # of Adafactor two, of which torch's chooses one itself
    weight_decay: Number
    amsgrad: bool


class Optimizer(TypedDict):
    """An optimizer's state."""

    state: dict[Any, Entry]
    param_groups: list[Group]


class TaskState(TypedDict, total=False):
    """What tasks of ours take over from training."""

    langs: Annotated[list[Name], Rule("a list of languages", lambda value: len(value) > 0)]
    langtoks: dict[Name, tuple[Text | None, Text | None]] | None
    langtoks_specs: list[Name]
    lang_tok_style: Literal["multilingual", "mbart"]
    lang_tok_replacing_bos_eos: bool
    enable_lang_ids: bool
    task_ids: Literal["target", "source", "pair"]
    lang_pairs: list[Pair]
    tokenizer: Name
    sentencepiece: Bytes


class Checkpoint(TypedDict, total=False):
    """The whole file; an expert shard has its experts' part of the tensors."""

    args: Namespace | None
    cfg: dict[str, Any] | None
    model: Tensors | None
    criterion: dict[str, Any] | None
    optimizer_history: Annotated[list[History], Rule("a list that is not empty", lambda value: len(value) > 0)] | None
    task_state: TaskState | None
    extra_state: Extra | None
    last_optimizer_state: Optimizer | None
    first: Count
    count: Count
    ema: Tensors
    ema_fp32_params: Tensors
    optimizer: dict[str, Entry]


def check(path: str | Path, state: dict[str, Any]) -> None:
    """Refuse a checkpoint in which a value is not what it must be.

    Raises:
        UserError: that value, what it must be, and what it is.
    """
    found = fault(state, _form_of(state)) or next(_faults_of_options(state), None)
    if found is not None:
        raise UserError(
            f"`{path}` must hold {found.rule} as `{found.place}`, but holds {found.found}; it was not loaded."
        )


def _form_of(state: Mapping[str, Any]) -> Any:
    """What a checkpoint must be: with `--optimizer composite` it has the state of each of several optimizers."""
    optimizer = state.get("last_optimizer_state")
    parts = optimizer.values() if isinstance(optimizer, dict) else ()
    if any(isinstance(one, dict) and "param_groups" in one for one in parts):
        hints = get_type_hints(Checkpoint, include_extras=True)
        return {**hints, "last_optimizer_state": dict[Name, Optimizer | Number]}
    return Checkpoint


def _faults_of_options(state: dict[str, Any]) -> Iterator[Fault]:
    """Of options that are made into something, and are not of the type that fairseq's dataclass says.

    Where nobody has loaded fairseq, nobody makes anything of them.
    """
    if "fairseq.models" not in sys.modules:
        return
    sections, flat = state.get("cfg") or {}, state.get("args")
    for section in _SECTIONS:
        options = sections.get(section)
        if isinstance(options, Namespace | dict):
            yield from _faults(f"cfg.{section}", options, _dataclass(section, _entries(options).get("_name")))
    if flat is not None:
        for section, key in (("model", "arch"), ("criterion", "criterion")):
            yield from _faults("args", flat, _dataclass(section, vars(flat).get(key, "")))


def _entries(options: Namespace | dict[str, Any]) -> dict[str, Any]:
    return vars(options) if isinstance(options, Namespace) else options


def _dataclass(section: str, name: Any) -> Any:
    """The dataclass of a section of fairseq's options, or None where there is none."""
    from fairseq.dataclass.configs import FairseqConfig
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_DATACLASS_REGISTRY

    if section == "model":
        return MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(str(name), str(name)))
    if section == "task":
        return TASK_DATACLASS_REGISTRY.get(str(name))
    if section in REGISTRIES:
        return REGISTRIES[section]["dataclass_registry"].get(str(name))
    return FairseqConfig.__dataclass_fields__[section].type


def _faults(place: str, options: Namespace | dict[str, Any], kind: Any) -> Iterator[Fault]:
    """Of one section. A value that OmegaConf turns into the type, such as a number from text, is turned into it."""
    from omegaconf import OmegaConf

    if kind is None:
        return
    entries, taken = _entries(options), OmegaConf.structured(kind)
    for field in dataclasses.fields(kind):
        value, name = entries.get(field.name), f"{place}.{field.name}"
        if value is None or field.name == "_name" or field.type is Any or (isinstance(value, str) and "${" in value):
            continue
        if isinstance(value, dict) and dataclasses.is_dataclass(field.type):
            yield from _faults(name, value, field.type)
            continue
        try:
            assert isinstance(value, _PLAIN)
            taken[field.name] = value
            found = taken[field.name]
        except Exception:  # OmegaConf's, and Python's where a number has no end
            yield Fault(name, words(field.type), shown(value))
            continue
        if type(found) is not type(value) and isinstance(found, _SCALARS) and isinstance(value, _SCALARS):
            entries[field.name] = found
