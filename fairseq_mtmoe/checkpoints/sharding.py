"""Sharding of a checkpoint's state: into a shared part and the contents of expert shards, and joined again.

The shared part is fairseq's checkpoint without the experts. A shard's *content* is what belongs to experts `first` to
`first + count`: `{"first", "count", "model", "ema", "ema_fp32_params", "optimizer"}`, every tensor with experts in its
first dimension. Everything here is plain: no files, no processes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints.key_maps import EXPERTS
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.optim.saved_state import (
    NamedState,
    Parameters,
    by_name,
    has_shape,
    is_flat,
    saved_state,
)

State = dict[str, Any]
Content = dict[str, Any]

VERSION = 1
AVERAGES = ("ema", "ema_fp32_params")
PARTS = ("model", *AVERAGES, "optimizer")


def is_expert(name: str) -> bool:
    """Whether a parameter or a key of a model's state is one of its experts'."""
    return EXPERTS in name


def is_shared_part(state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's state is a shared part: its experts are in shards."""
    return "experts" in state


def count_experts(model: Mapping[str, Tensor]) -> int:
    """N, of a model's whole state; 0 if it is dense."""
    return next((len(value) for key, value in model.items() if is_expert(key)), 0)


def has_experts(state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint, whole or in parts, is of a model with experts."""
    return is_shared_part(state) or count_experts(state.get("model") or {}) > 0


def has_rows(content: Content) -> bool:
    """Whether every tensor of a content has as many rows as it has experts."""

    def fits(value: Any) -> bool:
        if isinstance(value, dict):
            return all(map(fits, value.values()))
        return not torch.is_tensor(value) or not value.dim() or len(value) == content["count"]

    return all(fits(content[part]) for part in PARTS if part in content)


def split(state: State, placement: ExpertPlacement, parameters: Parameters) -> tuple[State, Content]:
    """The shared part of one process's state, and the content of the shard that it writes; the state stays as it is.

    Args:
        state: what fairseq would save, with this process's experts.
        placement: which experts those are.
        parameters: names and (local) shapes of the trained parameters, in the optimizer's order.

    Returns:
        The shared part, still without the list of shards (`layout.with_shard_list`); and the content, whose tensors may
        be views of those in `state`.

    Raises:
        UserError: a tensor has another number of experts, or the optimizer keeps tensors of other shapes than theirs.
    """
    shared_part: State = dict(state)
    content = content_of(state, placement, parameters)
    shared_part["model"] = _without_experts(state["model"])
    shared_part["extra_state"] = extra = dict(state.get("extra_state") or {})
    for name in AVERAGES:
        if name in extra:
            extra[name] = _without_experts(extra[name])
    if not has_rows(content):
        count = placement.count
        raise UserError(f"Every tensor of experts in the checkpoint must have {count} of them, but one has not.")
    shared_part["experts"] = {
        "version": VERSION,
        "num_experts": placement.num_experts,
        "keys": list(state["model"]),
        "optimizer_names": {index: name for index, (name, _) in enumerate(parameters)},
    }
    saved = state.get("last_optimizer_state")
    if isinstance(saved, Mapping):
        flat = is_flat(saved, parameters)
        shared_part["experts"]["flat_optimizer"] = flat
        rest = _without_experts(by_name(saved, parameters))
        shared_part["last_optimizer_state"] = saved_state(compact(rest), saved, parameters, flat=False)
    return shared_part, content


def content_of(state: State, placement: ExpertPlacement, parameters: Parameters) -> Content:
    """The second half alone of what `split` returns: all views, and no more than the experts."""
    parts = {"model": state["model"], **_averages(state)}
    saved = state.get("last_optimizer_state")
    if isinstance(saved, Mapping):
        parts["optimizer"] = by_name(saved, parameters)
    content = {name: {key: v for key, v in part.items() if is_expert(key)} for name, part in parts.items()}
    _check_shapes(content.get("optimizer", {}), dict(parameters))
    return {"first": placement.first, "count": placement.count, **content}


def _averages(state: State) -> dict[str, Any]:
    extra = state.get("extra_state") or {}
    return {name: extra[name] for name in AVERAGES if name in extra}


def join(shared_part: State, content: Content, parameters: Parameters | None = None, flat: bool | None = None) -> State:
    """The state of a shared part and a shard's content, as a process with these experts would have saved it.

    Args:
        shared_part: which is left as it is.
        content: some of the experts or all.
        parameters: names and shapes of the parameters that are trained now, in the optimizer's order; by default those
            that were.
        flat: whether the optimizer's state is to be one vector; by default as it was.
    """
    experts = shared_part["experts"]
    state = {key: value for key, value in shared_part.items() if key != "experts"}
    state["model"] = _merged(shared_part["model"], content["model"], experts["keys"])
    state["extra_state"] = extra = dict(shared_part["extra_state"])
    for name in AVERAGES:
        if name in extra and name in content:
            extra[name] = _merged(extra[name], content[name], experts["keys"])
    saved = shared_part.get("last_optimizer_state")
    if isinstance(saved, Mapping) and "optimizer" in content:
        names = [name for _, name in sorted(experts["optimizer_names"].items())]
        named = {names[index]: entry for index, entry in saved["state"].items()} | content["optimizer"]
        parameters = [(name, _shape(named.get(name, {}))) for name in names] if parameters is None else parameters
        flat = experts.get("flat_optimizer", False) if flat is None else flat
        state["last_optimizer_state"] = saved_state(named, saved, parameters, flat)
    return state


def whole_shapes(parameters: Parameters, num_experts: int) -> list[tuple[str, tuple[int, ...]]]:
    """The parameters of a process that holds all experts, given those of one that holds some."""
    return [(name, (num_experts, *shape[1:]) if is_expert(name) else tuple(shape)) for name, shape in parameters]


def narrow(content: Content, first: int, count: int, parts: Iterable[str] = PARTS) -> Content:
    """Experts `first` to `first + count` of a content that has them, as views."""
    start = first - content["first"]
    assert start >= 0 and start + count <= content["count"]
    narrowed = {
        part: map_experts(content[part], lambda v: v[start : start + count]) for part in parts if part in content
    }
    return {"first": first, "count": count, **narrowed}


def map_experts(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A part of a content, with `change` applied to every tensor that has experts in its first dimension."""
    if isinstance(value, dict):
        return {key: map_experts(item, change) for key, item in value.items()}
    if torch.is_tensor(value):
        return change(value) if value.dim() else value.clone()
    return value


def compact(value: Any) -> Any:
    """Nested dicts with every tensor that is part of a larger one replaced by a copy: a file would hold all of it."""
    if isinstance(value, dict):
        return {key: compact(item) for key, item in value.items()}
    if torch.is_tensor(value) and value.untyped_storage().nbytes() > value.nbytes:
        return value.clone()
    return value


def owned(value: Any) -> Any:
    """A content with every tensor copied out of where it is, a file that is only mapped for example."""
    return map_experts(value, Tensor.clone)


def _without_experts(named: dict[str, Any]) -> dict[str, Any]:
    rest = copy.copy(named)  # with the attributes of a model's state
    for key in named:
        if is_expert(key):
            del rest[key]
    return rest


def _merged(rest: dict[str, Tensor], experts: dict[str, Tensor], keys: list[str]) -> dict[str, Tensor]:
    """Both in one, in the order of `keys`, which averaging checkpoints relies on."""
    merged = copy.copy(rest)
    for key in keys:
        if key in experts:
            merged[key] = experts[key]
        elif key in merged:
            merged[key] = merged.pop(key)
    return merged


def _check_shapes(named: NamedState, shapes: Mapping[str, Any]) -> None:
    for name, entry in named.items():
        if not has_shape(entry, shapes[name]):
            raise UserError(
                "Experts in several processes must be trained by an `--optimizer` whose state has the shapes of the "
                f"parameters, such as adam, but that of `{name}` has others."
            )


def _shape(entry: Mapping[str, Any]) -> torch.Size:
    """The shape of the parameter that an entry belongs to; () also if the entry is empty."""
    return next((value.shape for value in entry.values() if torch.is_tensor(value) and value.dim()), torch.Size())
