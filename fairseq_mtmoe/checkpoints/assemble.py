"""A checkpoint's state put together from its files: for a process with some of the experts, or with all in it.

Expert shards are files with some of the experts each, written by one process and read by any; `layout.py` says where
they lie. A process copies its experts out of mapped files, one after the other, and holds no more than those.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile, peek
from fairseq_mtmoe.checkpoints.last_good import suggested_fallback
from fairseq_mtmoe.checkpoints.layout import ShardEntry, check_shard_list, expert_folder, shard_name, shards_of
from fairseq_mtmoe.checkpoints.sharding import (
    PARTS,
    Content,
    State,
    compact,
    count_experts,
    has_rows,
    is_shared_part,
    join,
    map_experts,
    narrow,
    owned,
    split,
    whole_shapes,
)
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.optim.saved_state import Parameters

_UNEVEN = 4  # times: shards of few experts are larger for each of them


def write_shard(folder: str | Path, content: Content) -> ShardEntry:
    """Write one process's experts into the folder of an id, completely or not at all; returns the shard's entry."""
    first, count = content["first"], content["count"]
    name = shard_name(first, count)
    digest = file_io.save(compact(content), str(Path(folder) / name))
    return {"name": name, "first": first, "count": count, "sha256": digest}


class ShardReader:
    """Reads experts of one checkpoint out of its shards, each verified when it is opened.

    Args:
        path: the shared part's file, beside which the shards lie.
        shared_part: its content.

    Raises:
        UserError: the shared part's list of shards is damaged.
    """

    def __init__(self, path: str | Path, shared_part: State) -> None:
        self._path = Path(path)
        self._shards = shards_of(path, shared_part)
        self._last: tuple[Path, Content] = (Path(), {})

    def read(self, first: int, count: int, parts: Iterable[str] = PARTS) -> Content:
        """The wanted parts of the content of experts `first` to `first + count`.

        Raises:
            UserError: a shard that has some of them is missing or damaged, or belongs to another checkpoint.
        """
        parts = tuple(parts)
        result: Content = {}
        for file, entry in self._shards.items():
            start = max(first, entry["first"])
            end = min(first + count, entry["first"] + entry["count"])
            if start < end:
                piece = narrow(self._open(file, entry), start, end - start, parts)
                if not result:
                    self._check_room(file, first, count)
                    result = _room(piece, first, count)
                self._copy(piece, narrow(result, start, end - start, parts), file)
        return result

    def _open(self, path: Path, entry: ShardEntry) -> Content:
        """The content of one shard, mapped; the last one's is kept, which the next experts may be in, too."""
        if self._last[0] == path:
            return self._last[1]
        if not path.is_file():
            raise self._missing(path)
        with CheckpointFile(path) as file:
            if file.verify() != entry["sha256"]:
                raise self._foreign(path)
            content: Content = file.load(mapped=True)
        if (content.get("first"), content.get("count")) != (entry["first"], entry["count"]) or not has_rows(content):
            raise self._foreign(path)
        self._last = (path, content)
        return content

    def _check_room(self, known: Path, first: int, count: int) -> None:
        """Refuse a list of shards whose experts would need more room than they have on the disk."""
        per_expert = os.path.getsize(known) / self._shards[known]["count"]
        for path, entry in self._shards.items():
            wanted = entry["first"] < first + count and first < entry["first"] + entry["count"]
            if wanted and path.is_file() and os.path.getsize(path) * _UNEVEN < per_expert * entry["count"]:
                raise self._foreign(path)

    def _copy(self, piece: Any, target: Any, path: Path) -> None:
        for key, value in piece.items():
            if key not in target or len(piece) != len(target):
                raise self._foreign(path)
            if isinstance(value, dict):
                self._copy(value, target[key], path)
            elif torch.is_tensor(value) and value.dim():
                target[key].copy_(value)

    def _missing(self, path: Path) -> UserError:
        return UserError(
            f"`{path}` must be there, but is missing: the folder `{expert_folder(self._path).name}` must lie beside "
            f"`{self._path}`, whose experts it holds; copy both, or use an older one{suggested_fallback(self._path)}."
        )

    def _foreign(self, path: Path) -> UserError:
        return UserError(
            f"`{path}` must be the file that was saved with `{self._path}`, but is another; "
            f"copy the folder `{expert_folder(self._path).name}` again from where the checkpoint was saved."
        )


def _room(piece: Content, first: int, count: int) -> Content:
    """A content for so many experts like `piece`, with tensors that are still to be filled."""
    parts = {key: value for key, value in piece.items() if key in PARTS}
    return {"first": first, "count": count, **map_experts(parts, lambda v: v.new_empty((count, *v.shape[1:])))}


def load_shared_part(path: str | Path, file: CheckpointFile | None = None) -> State:
    """A checkpoint's state but for experts that are in shards; of a whole checkpoint all of it.

    `file`: that checkpoint, where it is open already.

    Raises:
        UserError: the file is missing or damaged, or its list of shards is.
    """
    return _with_checked_list(path, file_io.load(str(path)) if file is None else file.load())


def load_mapped(path: str | Path) -> State:
    """As `load_shared_part`, but every tensor is read when it is touched, and none is held."""
    return _with_checked_list(path, file_io.load(str(path), mapped=True))


def _with_checked_list(path: str | Path, state: State) -> State:
    if is_shared_part(state):
        check_shard_list(path, state)
    return state


def load_local(
    path: str | Path, placement: ExpertPlacement, parameters: Parameters, flat: bool, file: CheckpointFile | None = None
) -> State:
    """What a process needs of the checkpoint at `path`, see `localize`; it never holds other experts than its own.

    `file`: that checkpoint, where it is open already.
    """
    if file is None:
        with CheckpointFile(path) as opened:
            return load_local(path, placement, parameters, flat, opened)
    state = file.peek() or {}
    if is_shared_part(state) or count_experts(state.get("model", {})) <= placement.count:
        return localize(path, _with_checked_list(path, file.load()), placement, parameters, flat)
    _check_number(path, count_experts(state["model"]), placement)
    shared_part, content = _own_part(file.load(mapped=True), placement, parameters)
    return join(copy.deepcopy(shared_part), content, parameters, flat)


def is_in_parts(path: str | Path) -> bool:
    """Whether the experts of the checkpoint at `path` are in shards; False also if it cannot be read."""
    return is_shared_part(peek(path) or {})


def localize(path: str | Path, state: State, placement: ExpertPlacement, parameters: Parameters, flat: bool) -> State:
    """What a process needs of a checkpoint: the state that it would have saved itself, with its own experts.

    Args:
        path: the checkpoint's file, whose experts may lie beside it.
        state: its content, from `load_shared_part` or from fairseq: a shared part, a whole checkpoint, or a dense one.
        placement: the process's experts.
        parameters: names and (local) shapes of the trained parameters, in the optimizer's order.
        flat: whether the process's optimizer keeps one vector for all parameters, as fairseq's does with `--fp16`.

    Raises:
        UserError: experts are missing, or are others than the model's.
    """
    if is_shared_part(state):
        _check_number(path, state["experts"]["num_experts"], placement)
        return join(state, ShardReader(path, state).read(placement.first, placement.count), parameters, flat)
    num_experts = count_experts(state["model"])
    if not num_experts:
        return state
    _check_number(path, num_experts, placement)
    return join(*_own_part(state, placement, parameters), parameters, flat)


def _check_number(path: str | Path, num_experts: int, placement: ExpertPlacement) -> None:
    if num_experts != placement.num_experts:
        raise UserError(
            f"`--num-experts` must be {num_experts} to go on from `{path}`, but is {placement.num_experts} instead."
        )


def _own_part(state: State, placement: ExpertPlacement, parameters: Parameters) -> tuple[State, Content]:
    """A whole checkpoint's shared part, and a copy of one process's experts."""
    everything = ExpertPlacement(placement.num_experts, 0, placement.num_experts)
    shared_part, content = split(state, everything, whole_shapes(parameters, placement.num_experts))
    return shared_part, owned(narrow(content, placement.first, placement.count))


def whole(path: str | Path, state: State, parts: Iterable[str] = PARTS) -> State:
    """A checkpoint's state with all experts in it, as one process would have saved it; a whole one as it is.

    Without "optimizer" among `parts` the optimizer's state is left out: for generation.
    """
    parts = tuple(parts)
    if "optimizer" not in parts:
        state = {key: value for key, value in state.items() if key != "last_optimizer_state"}
    if not is_shared_part(state):
        return state
    experts = ShardReader(path, state).read(0, state["experts"]["num_experts"], parts)
    return join(state, experts)
