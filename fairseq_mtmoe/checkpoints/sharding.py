"""A checkpoint in parts: what each part holds, what its file is called, and all of them in one state again.

A checkpoint is one file, `X.pt`, or a *shared part* of that name, fairseq's checkpoint without the experts, with
*expert shards* beside it: `X.experts/<id>/0-3.pt` holds experts 0 to 3 of the checkpoint whose shared part names
`<id>`, whatever processes wrote it. Shards are written first, under a new id: until the shared part has its name, the
checkpoint before it is whole. A shard's *content* is `{"first", "count", "model", "ema", "ema_fp32_params",
"optimizer"}`, every tensor with experts `first` to `first + count` in its first dimension.
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
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.typed import Name, Text, fault
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.optim.state import OptimizerState, Parameters, is_flat

State = dict[str, Any]
Content = dict[str, Any]
ShardEntry = dict[str, Any]  # {"name": "0-3.pt", "first": 0, "count": 4, "sha256": "…"}

VERSION = 1
PARTS = ("model", *AVERAGES, "optimizer")
FOLDER_SUFFIX = ".experts"
SAVE_ID = re.compile(r"[0-9a-f]{16}")

_ENTRY: Any = {"name": Required[Text], "first": Required[int], "count": Required[int], "sha256": Required[Name]}
_EXPERTS: Any = {
    "id": Required[str], "num_experts": Required[int], "keys": Required[list[Text]], "files": Required[list[_ENTRY]],
    "optimizer_names": Required[dict[int, Text]], "flat_optimizer": bool,
}  # fmt: skip


def new_id() -> str:
    """A name that no other save has; all processes of one save need the same."""
    return secrets.token_hex(8)


def shard_name(first: int, count: int) -> str:
    """The name of the file of experts `first` to `first + count`."""
    return f"{first}-{first + count - 1}.pt"


def expert_folder(path: str | Path) -> Path:
    """The folder of the shards of `path`, with a folder for each id (UserError: no name in `.pt`)."""
    path = Path(path)
    if path.suffix != ".pt":
        raise UserError(f"`{path}` must end in `.pt`: its experts are in a folder of that name with `.experts`.")
    return path.with_suffix(FOLDER_SUFFIX)


def shared_part_of(path: Path) -> Path:
    """A shard's shared part, or the file itself."""
    is_in_folder = len(path.parents) > 2 and path.parents[1].suffix == FOLDER_SUFFIX
    return path.parents[1].with_suffix(".pt") if is_in_folder else path


def shards_of(path: str | Path, shared_part: State) -> dict[Path, ShardEntry]:
    """The shards of the shared part at `path`, with their entries, in the experts' order; see `check_shard_list`."""
    check_shard_list(path, shared_part)
    folder = expert_folder(path) / shared_part["experts"]["id"]
    return {folder / entry["name"]: entry for entry in shared_part["experts"]["files"]}


def with_shard_list(shared_part: State, save_id: str, shards: Iterable[ShardEntry]) -> State:
    """The shared part to save once all shards are written: it names them."""
    entries = sorted(shards, key=lambda entry: int(entry["first"]))
    return {**shared_part, "experts": {**shared_part["experts"], "id": save_id, "files": entries}}


def check_shard_list(path: str | Path, shared_part: State) -> None:
    """Refuse a shared part whose `"experts"` is of a newer format, or names files that this package does not write."""
    experts = shared_part["experts"]
    if isinstance(experts, dict) and isinstance(experts.get("version"), int) and experts["version"] > VERSION:
        raise UserError(f"`{path}` must be read with a newer version of fairseq_mtmoe, which wrote it.")
    if not _is_well_formed(experts):
        raise UserError(f"`{path}` must name the files of all its experts, but its list of them is damaged.")


def _is_well_formed(experts: Any) -> bool:
    if fault(experts, _EXPERTS) is not None or not SAVE_ID.fullmatch(experts["id"]):
        return False
    position = 0
    for entry in experts["files"]:
        if entry["first"] != position or entry["count"] <= 0 or entry["name"] != shard_name(position, entry["count"]):
            return False
        position += entry["count"]
    return bool(position == experts["num_experts"])


def is_shared_part(state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's experts are in shards."""
    return "experts" in state


def count_experts(state: Mapping[str, Any]) -> int:
    """N, of a checkpoint, whole or in parts; 0 of a dense one."""
    if is_shared_part(state):
        return int(state["experts"]["num_experts"])
    return next((len(value) for key, value in (state.get("model") or {}).items() if EXPERTS in key), 0)


def has_experts(state: Mapping[str, Any]) -> bool:
    """Whether a checkpoint, whole or in parts, is of a model with experts."""
    return is_shared_part(state) or count_experts(state) > 0


def has_rows(content: Content) -> bool:
    """Whether every tensor of a content has as many rows as it has experts."""

    def fits(value: Any) -> bool:
        if isinstance(value, dict):
            return all(map(fits, value.values()))
        return not torch.is_tensor(value) or not value.dim() or len(value) == content["count"]

    return all(fits(content[part]) for part in PARTS if part in content)


def split(state: State, placement: ExpertPlacement, parameters: Parameters) -> tuple[State, Content]:
    """The shared part of one process's state, still without a list of shards, and the content of its shard, as views.

    Args:
        state: what fairseq would save, with this process's experts (UserError: tensors of others).
        placement: which experts those are.
        parameters: names and (local) shapes of the trained parameters, in the optimizer's order.
    """
    content = content_of(state, placement, parameters)
    if not has_rows(content):
        count = placement.count
        raise UserError(f"Every tensor of experts in the checkpoint must have {count} of them, but one has not.")
    shared_part: State = {**state, "model": without(state["model"], EXPERTS)}
    shared_part["extra_state"] = dict(state.get("extra_state") or {})
    shared_part["extra_state"] |= {name: without(part, EXPERTS) for name, part in _averages(state).items()}
    shared_part["experts"] = experts = {
        "version": VERSION,
        "num_experts": placement.num_experts,
        "keys": list(state["model"]),
        "optimizer_names": {index: name for index, (name, _) in enumerate(parameters)},
    }
    saved = state.get("last_optimizer_state")
    if isinstance(saved, Mapping):
        experts["flat_optimizer"] = is_flat(saved, parameters)
        named = OptimizerState.from_saved(saved, parameters)
        rest = OptimizerState({name: compact(entry) for name, entry in named.items() if EXPERTS not in name})
        shared_part["last_optimizer_state"] = rest.to_saved(saved, parameters, flat=False)
    return shared_part, content


def content_of(state: State, placement: ExpertPlacement, parameters: Parameters) -> Content:
    """The second half alone of what `split` returns: all views, and no more than the experts."""
    parts = {"model": state["model"], **_averages(state)}
    saved = state.get("last_optimizer_state")
    if isinstance(saved, Mapping):
        named = OptimizerState.from_saved(saved, parameters)
        wrong = named.misfit([(name, shape) for name, shape in parameters if EXPERTS in name])
        if wrong is not None:
            raise UserError(
                "Experts in several processes must be trained by an `--optimizer` whose state has the shapes of the "
                f"parameters, such as adam, but that of `{wrong}` has others."
            )
        parts["optimizer"] = named
    content = {name: {key: v for key, v in part.items() if EXPERTS in key} for name, part in parts.items()}
    return {"first": placement.first, "count": placement.count, **content}


def join(shared_part: State, content: Content, parameters: Parameters | None = None, flat: bool | None = None) -> State:
    """The state of a shared part and some or all experts, as a process with these would have saved it.

    parameters, flat: as the optimizer has them now (see `load_local`); by default as it had them.
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
        named = OptimizerState({names[index]: entry for index, entry in saved["state"].items()} | content["optimizer"])
        parameters = [(name, _shape(named.get(name, {}))) for name in names] if parameters is None else parameters
        flat = experts.get("flat_optimizer", False) if flat is None else flat
        state["last_optimizer_state"] = named.to_saved(saved, parameters, flat)
    return state


def whole_shapes(parameters: Parameters, num_experts: int) -> Parameters:
    """The parameters of a process with all experts, given those of one with some."""
    return [(name, (num_experts, *shape[1:]) if EXPERTS in name else tuple(shape)) for name, shape in parameters]


def narrow(content: Content, first: int, count: int, parts: Iterable[str] = PARTS) -> Content:
    """Experts `first` to `first + count` of a content that has them, as views."""
    start = first - content["first"]
    assert start >= 0 and start + count <= content["count"]
    found = (part for part in parts if part in content)
    narrowed = {part: map_experts(content[part], lambda v: v[start : start + count]) for part in found}
    return {"first": first, "count": count, **narrowed}


def map_experts(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A part of a content, with `change` applied to every tensor with experts."""
    if isinstance(value, dict):
        return {key: map_experts(item, change) for key, item in value.items()}
    if torch.is_tensor(value):
        return change(value) if value.dim() else value.clone()
    return value


def compact(value: Any) -> Any:
    """Nested dicts with copies of tensors that are part of larger ones: a file would hold all of these."""
    if isinstance(value, dict):
        return {key: compact(item) for key, item in value.items()}
    if torch.is_tensor(value) and value.untyped_storage().nbytes() > value.nbytes:
        return value.clone()
    return value


def _averages(state: State) -> dict[str, Any]:
    extra = state.get("extra_state") or {}
    return {name: extra[name] for name in AVERAGES if extra.get(name) is not None}


def _merged(rest: dict[str, Tensor], experts: dict[str, Tensor], keys: list[str]) -> dict[str, Tensor]:
    """Both in one, in the order of `keys`, which averaging relies on."""
    merged = copy.copy(rest)
    for key in keys:
        if key in experts:
            merged[key] = experts[key]
        elif key in merged:
            merged[key] = merged.pop(key)
    return merged


def _shape(entry: Mapping[str, Any]) -> torch.Size:
    """The shape of an entry's parameter; () if the entry is empty."""
    return next((value.shape for value in entry.values() if torch.is_tensor(value) and value.dim()), torch.Size())
