"""Checkpoints in parts: shared part and expert shards, their names, and joining.

A checkpoint is one file, `X.pt`, or a *shared part* of that name with *expert shards* beside it.
The shared part is fairseq's checkpoint without experts. `X.experts/<id>/0-3.pt` holds experts 0 to
3 of the checkpoint whose shared part names `<id>`, whichever processes wrote it. Shards are written
first, under a new id: until the shared part gets its name, the previous checkpoint is whole. A
shard's *content* is `{"first", "count", "model", "ema", "ema_fp32_params", "optimizer"}`; every
tensor has experts `first` to `first + count` in its first dimension.
"""

import copy
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Required

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints.key_maps import AVERAGES, EXPERTS, without
from fairseq_mtmoe.checkpoints.optimizer_state import OptimizerState, Parameters, is_flat
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.typed import Name, Text, fault, mapping
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement

State = dict[str, Any]
Content = dict[str, Any]
ShardEntry = dict[str, Any]  # {"name": "0-3.pt", "first": 0, "count": 4, "sha256": "…"}

VERSION = 1
PARTS = ("model", *AVERAGES, "optimizer")
FOLDER_SUFFIX = ".experts"
SAVE_ID = re.compile(r"[0-9a-f]{16}")

_ENTRY: Any = mapping(
    {
        "name": Required[Text],
        "first": Required[int],
        "count": Required[int],
        "sha256": Required[Name],
    }
)
_EXPERTS: Any = mapping(
    {
        "id": Required[str],
        "num_experts": Required[int],
        "keys": Required[list[Text]],
        "files": Required[list[_ENTRY]],
        "optimizer_names": Required[dict[int, Text]],
        "flat_optimizer": bool,
    }
)


def new_id() -> str:
    """Return a unique name for a save; all its processes must use the same."""
    return secrets.token_hex(8)


def shard_name(first: int, count: int) -> str:
    """Return the name of the file of experts `first` to `first + count`."""
    return f"{first}-{first + count - 1}.pt"


def expert_folder(path: str | Path) -> Path:
    """Return the folder of the shards of `path` (UserError: it does not end in `.pt`)."""
    path = Path(path)
    if path.suffix != ".pt":
        raise UserError(
            f"`{path}` must end in `.pt`: its experts are in a folder of that name with `.experts`."
        )
    return path.with_suffix(FOLDER_SUFFIX)


def shared_part_of(path: Path) -> Path:
    """Return a shard's shared part, or the file itself."""
    is_in_folder = len(path.parents) > 2 and path.parents[1].suffix == FOLDER_SUFFIX
    return path.parents[1].with_suffix(".pt") if is_in_folder else path


def shards_of(path: str | Path, shared_part: State) -> dict[Path, ShardEntry]:
    """Return the shards of a shared part with their entries, in the experts' order.

    See `check_shard_list` for errors.
    """
    check_shard_list(path, shared_part)
    folder = expert_folder(path) / shared_part["experts"]["id"]
    return {folder / entry["name"]: entry for entry in shared_part["experts"]["files"]}


def with_shard_list(shared_part: State, save_id: str, shards: Iterable[ShardEntry]) -> State:
    """Return the shared part that names these shards; save it after them."""
    entries = sorted(shards, key=lambda entry: int(entry["first"]))
    return {**shared_part, "experts": {**shared_part["experts"], "id": save_id, "files": entries}}


def check_shard_list(path: str | Path, shared_part: State) -> None:
    """Refuse a shared part with a damaged list of shards, or of a newer format."""
    experts = shared_part["experts"]
    if (
        isinstance(experts, dict)
        and isinstance(experts.get("version"), int)
        and experts["version"] > VERSION
    ):
        raise UserError(
            f"`{path}` was written by a newer version of fairseq_mtmoe; install that version."
        )
    if not _is_well_formed(experts):
        raise UserError(f"`{path}` is damaged: its list of the experts' files is incomplete.")


def _is_well_formed(experts: Any) -> bool:
    if fault(experts, _EXPERTS) is not None or not SAVE_ID.fullmatch(experts["id"]):
        return False
    position = 0
    for entry in experts["files"]:
        if (
            entry["first"] != position
            or entry["count"] <= 0
            or entry["name"] != shard_name(position, entry["count"])
        ):
            return False
        position += entry["count"]
    return bool(position == experts["num_experts"])


def is_shared_part(state: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint's experts are in shards."""
    return "experts" in state


def count_experts(state: Mapping[str, Any]) -> int:
    """Return a checkpoint's number of experts, whole or in parts; 0 if it is dense."""
    if is_shared_part(state):
        return int(state["experts"]["num_experts"])
    for key, value in (state.get("model") or {}).items():
        if EXPERTS in key:
            return len(value)
    return 0


def has_experts(state: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint, whole or in parts, has experts."""
    return is_shared_part(state) or count_experts(state) > 0


def has_rows(content: Content) -> bool:
    """Return whether every tensor of a content has a row per expert."""

    def fits(value: Any) -> bool:
        if isinstance(value, dict):
            return all(map(fits, value.values()))
        return not torch.is_tensor(value) or not value.dim() or len(value) == content["count"]

    return fits(content)


def split(
    state: State, placement: ExpertPlacement, parameters: Parameters
) -> tuple[State, Content]:
    """Split one process's state into a shared part and its shard's content, as views.

    The shared part has no list of shards yet.

    Args:
        state: the state that fairseq would save, with this process's experts (UserError: tensors do
            not match).
        placement: the process's experts.
        parameters: names and (local) shapes of the trained parameters, in the optimizer's order.
    """
    content = content_of(state, placement, parameters)
    if not has_rows(content):
        count = placement.count
        raise UserError(
            f"A tensor of experts in the checkpoint has another number of experts than {count}."
        )
    shared_part: State = {**state, "model": without(state["model"], EXPERTS)}
    shared_part["extra_state"] = dict(state.get("extra_state") or {})
    shared_part["extra_state"] |= {
        name: without(part, EXPERTS) for name, part in averages_of(state).items()
    }
    shared_part["experts"] = experts = {
        "version": VERSION,
        "num_experts": placement.num_experts,
        "keys": list(state["model"]),
        "optimizer_names": dict(enumerate(dict(parameters))),
    }
    saved = state.get("last_optimizer_state")
    if isinstance(saved, Mapping):
        experts["flat_optimizer"] = is_flat(saved, parameters)
        named = OptimizerState.from_saved(saved, parameters)
        rest = OptimizerState(compact(without(named, EXPERTS)))
        shared_part["last_optimizer_state"] = rest.to_saved(saved, parameters, flat=False)
    return shared_part, content


def content_of(state: State, placement: ExpertPlacement, parameters: Parameters) -> Content:
    """Return only the content that `split` returns: views of the experts."""
    parts = {"model": state["model"], **averages_of(state)}
    saved = state.get("last_optimizer_state")
    if isinstance(saved, Mapping):
        named = OptimizerState.from_saved(saved, parameters)
        wrong = named.misfit([(name, shape) for name, shape in parameters if EXPERTS in name])
        if wrong is not None:
            raise UserError(
                "With experts in several processes, the state of `--optimizer` must have the "
                f"shapes of the parameters, as adam's does, but that of `{wrong}` has others."
            )
        parts["optimizer"] = named
    content: Content = {"first": placement.first, "count": placement.count}
    for name, part in parts.items():
        content[name] = {key: value for key, value in part.items() if EXPERTS in key}
    return content


def join(
    shared_part: State,
    content: Content,
    parameters: Parameters | None = None,
    flat: bool | None = None,
) -> State:
    """Return the state of a shared part and some or all experts, as of one process.

    parameters, flat: of the current optimizer (see `load_local`); by default as they were saved.
    """
    experts = shared_part["experts"]
    state = without(shared_part, "experts")
    state["model"] = _merged(shared_part["model"], content["model"], experts["keys"])
    state["extra_state"] = extra = dict(shared_part["extra_state"])
    for name in AVERAGES:
        if name in extra and name in content:
            extra[name] = _merged(extra[name], content[name], experts["keys"])
    saved = shared_part.get("last_optimizer_state")
    if isinstance(saved, Mapping) and "optimizer" in content:
        names = experts["optimizer_names"]
        named = OptimizerState(
            {names[index]: entry for index, entry in saved["state"].items()} | content["optimizer"]
        )
        if parameters is None:
            parameters = [(name, _shape(named.get(name, {}))) for name in names.values()]
        flat = experts.get("flat_optimizer", False) if flat is None else flat
        state["last_optimizer_state"] = named.to_saved(saved, parameters, flat)
    return state


def narrow(content: Content, first: int, count: int, parts: Iterable[str] = PARTS) -> Content:
    """Return experts `first` to `first + count` of a content, as views."""
    start = first - content["first"]
    assert start >= 0 and start + count <= content["count"]
    present = {part: content[part] for part in parts if part in content}
    return {
        "first": first,
        "count": count,
        **map_experts(present, lambda v: v[start : start + count]),
    }


def map_experts(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a part of a content with `change` applied to every tensor with experts."""
    if isinstance(value, dict):
        return {key: map_experts(item, change) for key, item in value.items()}
    if torch.is_tensor(value):
        return change(value) if value.dim() else value.clone()
    return value


def compact(value: Any) -> Any:
    """Return nested dicts with views copied: a file would hold their whole storage."""
    return map_experts(value, lambda v: v.clone() if v.untyped_storage().nbytes() > v.nbytes else v)


def averages_of(state: State) -> dict[str, dict[str, Tensor]]:
    """Return a state's moving averages of the weights, by their names."""
    extra = state.get("extra_state") or {}
    return {name: extra[name] for name in AVERAGES if extra.get(name)}


def _merged(
    rest: dict[str, Tensor], experts: dict[str, Tensor], keys: list[str]
) -> dict[str, Tensor]:
    """Return both in one, in the order of `keys`, which averaging relies on."""
    merged = copy.copy(rest)
    for key in keys:
        if key in experts:
            merged[key] = experts[key]
        elif key in merged:
            merged[key] = merged.pop(key)
    return merged


def _shape(entry: Mapping[str, Any]) -> torch.Size:
    """Return the shape of an entry's parameter; () if the entry is empty."""
    for value in entry.values():
        if torch.is_tensor(value) and value.dim():
            return value.shape
    return torch.Size()
