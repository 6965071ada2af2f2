"""A checkpoint's state put together from its files: for a process with some of the experts, or with all in it.

A process copies its experts out of mapped files, one after the other, and holds no more than those.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io, sharding
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile, suggested_fallback
from fairseq_mtmoe.checkpoints.sharding import Content, State
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.optim.state import Parameters


def write_shard(folder: str | Path, content: Content) -> sharding.ShardEntry:
    """Write one process's experts into the folder of an id, completely or not at all; returns the shard's entry."""
    first, count = content["first"], content["count"]
    name = sharding.shard_name(first, count)
    digest = file_io.save(sharding.compact(content), str(Path(folder) / name))
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
        self._shards = sharding.shards_of(path, shared_part)
        self._last: tuple[Path, Content] = (Path(), {})

    def read(self, first: int, count: int, parts: Iterable[str] = sharding.PARTS) -> Content:
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
                piece = sharding.narrow(self._open(file, entry), start, end - start, parts)
                if not result:
                    room = {part: sharding.map_experts(piece[part], lambda v: v.new_empty((count, *v.shape[1:])))
                            for part in parts if part in piece}  # fmt: skip
                    result = {"first": first, "count": count, **room}
                self._copy(piece, sharding.narrow(result, start, end - start, parts), file)
        return result

    def _open(self, path: Path, entry: sharding.ShardEntry) -> Content:
        """The content of one shard, mapped; the last one's is kept, which the next experts may be in, too."""
        if self._last[0] == path:
            return self._last[1]
        if not path.is_file():
            raise UserError(
                f"`{path}` must be there, but is missing: the folder `{path.parents[1].name}` must lie beside "
                f"`{self._path}`, whose experts it holds; copy both, or use an older one"
                f"{suggested_fallback(self._path)}."
            )
        with CheckpointFile(path) as file:
            if file.verify() != entry["sha256"]:
                raise self._foreign(path)
            content: Content = file.load(mapped=True)
        if any(content.get(name) != entry[name] for name in ("first", "count")) or not sharding.has_rows(content):
            raise self._foreign(path)
        self._last = (path, content)
        return content

    def _copy(self, piece: Any, target: Any, path: Path) -> None:
        for key, value in piece.items():
            if key not in target or len(piece) != len(target):
                raise self._foreign(path)
            if isinstance(value, dict):
                self._copy(value, target[key], path)
            elif torch.is_tensor(value) and value.dim():
                target[key].copy_(value)

    def _foreign(self, path: Path) -> UserError:
        return UserError(
            f"`{path}` must be the file that was saved with `{self._path}`, but is another; "
            f"copy the folder `{path.parents[1].name}` again from where the checkpoint was saved."
        )


def load_shared_part(path: str | Path, file: CheckpointFile | None = None, mapped: bool = False) -> State:
    """A checkpoint's state but for experts that are in shards; of a whole checkpoint all of it.

    Args:
        path: of the checkpoint.
        file: that checkpoint, where it is open already.
        mapped: every tensor is read when it is touched, and none is held.

    Raises:
        UserError: the file is missing or damaged, or its list of shards is.
    """
    state = file_io.load(str(path), mapped) if file is None else file.load(mapped)
    if sharding.is_shared_part(state):
        sharding.check_shard_list(path, state)
    return state


def load_local(
    path: str | Path, placement: ExpertPlacement, parameters: Parameters, flat: bool, file: CheckpointFile | None = None
) -> State:
    """What a process needs of a checkpoint: the state that it would have saved itself, with its own experts.

    It never holds other experts than those.

    Args:
        path: the checkpoint's file: a shared part, whose shards lie beside it, a whole checkpoint, or a dense one.
        placement: the process's experts.
        parameters: names and (local) shapes of the trained parameters, in the optimizer's order.
        flat: whether the process's optimizer keeps one vector for all parameters, as fairseq's does with `--fp16`.
        file: that checkpoint, where it is open already.

    Raises:
        UserError: experts are missing, or are others than the model's.
    """
    if file is None:
        with CheckpointFile(path) as opened:
            return load_local(path, placement, parameters, flat, opened)
    peeked = file.peek() or {}
    held = 0 if sharding.is_shared_part(peeked) else sharding.count_experts(peeked)
    state = load_shared_part(path, file, mapped=held > placement.count)
    num_experts = sharding.count_experts(state)
    if not num_experts:
        return state
    if num_experts != placement.num_experts:
        raise UserError(
            f"`--num-experts` must be {num_experts} to go on from `{path}`, but is {placement.num_experts} instead."
        )
    if sharding.is_shared_part(state):
        return sharding.join(state, ShardReader(path, state).read(placement.first, placement.count), parameters, flat)
    shared_part, content = sharding.split(
        state, ExpertPlacement(num_experts, 0, num_experts), sharding.whole_shapes(parameters, num_experts)
    )
    own = sharding.map_experts(sharding.narrow(content, placement.first, placement.count), Tensor.clone)
    return sharding.join(copy.deepcopy(shared_part) if held > placement.count else shared_part, own, parameters, flat)


def whole(path: str | Path, state: State, parts: Iterable[str] = sharding.PARTS) -> State:
    """A checkpoint's state with all experts in it, as one process would have saved it; a whole one as it is.

    Without "optimizer" among `parts` the optimizer's state is left out: for generation.
    """
    parts = tuple(parts)
    if "optimizer" not in parts:
        state = {key: value for key, value in state.items() if key != "last_optimizer_state"}
    if not sharding.is_shared_part(state):
        return state
    return sharding.join(state, ShardReader(path, state).read(0, state["experts"]["num_experts"], parts))
