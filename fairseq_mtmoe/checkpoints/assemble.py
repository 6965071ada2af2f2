"""Assemble a checkpoint's state from its files, with some or all of the experts."""

import copy
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io, sharding
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile, suggested_fallback
from fairseq_mtmoe.checkpoints.key_maps import EXPERTS
from fairseq_mtmoe.checkpoints.optimizer_state import Parameters
from fairseq_mtmoe.checkpoints.sharding import Content, State
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement


def write_shard(folder: str | Path, content: Content) -> sharding.ShardEntry:
    """Write one process's experts into the folder of an id; return the shard's entry.

    The file appears whole or not at all.
    """
    first = content["first"]
    count = content["count"]
    name = sharding.shard_name(first, count)
    digest = file_io.save(sharding.compact(content), str(Path(folder) / name))
    return {"name": name, "first": first, "count": count, "sha256": digest}


class ShardReader:
    """Reads experts of the checkpoint `path` from mapped shards."""

    def __init__(self, path: str | Path, shared_part: State) -> None:
        self._path = Path(path)
        self._shards = sharding.shards_of(path, shared_part)
        self._last: tuple[Path, Content] = (Path(), {})

    def read(self, first: int, count: int, parts: Collection[str] = sharding.PARTS) -> Content:
        """Return parts of experts `first` to `first + count`.

        Raises `UserError` if a shard is missing, damaged or of another save.
        """
        result: Content = {}
        for file, entry in self._shards.items():
            start = max(first, entry["first"])
            end = min(first + count, entry["first"] + entry["count"])
            if start < end:
                piece = sharding.narrow(self._open(file, entry), start, end - start, parts)
                if not result:
                    result = {"first": first, "count": count}
                    for part in parts:
                        if part in piece:
                            result[part] = sharding.map_experts(
                                piece[part], lambda v: v.new_empty((count, *v.shape[1:]))
                            )
                self._copy(piece, sharding.narrow(result, start, end - start, parts), file)
        return result

    def _open(self, path: Path, entry: sharding.ShardEntry) -> Content:
        """Return one shard's content, mapped; it is kept for the next experts."""
        if self._last[0] == path:
            return self._last[1]
        if not path.is_file():
            folder = path.parents[1].name
            remedy = (
                f"copy the folder `{folder}`, too, or use an older one"
                f"{suggested_fallback(self._path)}"
            )
            raise UserError(
                f"`{path}` with the experts of `{self._path}` does not exist; {remedy}."
            )
        with CheckpointFile(path) as file:
            if file.digest != entry["sha256"]:
                raise self._foreign(path)
            content: Content = file.load(mapped=True)
        is_listed = all(content.get(name) == entry[name] for name in ("first", "count"))
        if not is_listed or not sharding.has_rows(content):
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
        folder = path.parents[1].name
        return UserError(
            f"`{path}` and `{self._path}` come from different saves; copy the folder "
            f"`{folder}` again from where the checkpoint was saved."
        )


def load_shared_part(path: str | Path, mapped: bool = False) -> State:
    """Return a checkpoint's state without experts in shards (UserError: damaged).

    mapped: whether tensors are read when they are used.
    """
    with CheckpointFile(path) as file:
        return read_shared_part(file, mapped)


def read_shared_part(file: CheckpointFile, mapped: bool = False) -> State:
    """Return an open checkpoint's state without experts that are in shards."""
    state = file.load(mapped)
    if sharding.is_shared_part(state):
        sharding.check_shard_list(file.path, state)
    return state


def load_local(
    file: CheckpointFile, placement: ExpertPlacement, parameters: Parameters, flat: bool
) -> State:
    """Return the state that a process would have saved itself, with its own experts.

    Args:
        file: an open shared part with its shards beside it, a whole checkpoint, or a dense one.
        placement: the process's experts (UserError: some are missing, or the model has another
            number).
        parameters: names and (local) shapes of the trained parameters, in the optimizer's order.
        flat: whether the process's optimizer keeps one vector for all parameters, as fairseq's does
            with `--fp16`.
    """
    peeked = file.peek() or {}
    held = 0 if sharding.is_shared_part(peeked) else sharding.count_experts(peeked)
    state = read_shared_part(file, mapped=held > placement.count)
    num_experts = sharding.count_experts(state)
    if not num_experts:
        return state
    if num_experts != placement.num_experts:
        raise_invalid(
            "--num-experts", f"{num_experts} to load `{file.path}`", placement.num_experts
        )
    if sharding.is_shared_part(state):
        content = ShardReader(file.path, state).read(placement.first, placement.count)
        return sharding.join(state, content, parameters, flat)
    shapes: list[tuple[str, Sequence[int]]] = []
    for name, shape in parameters:
        if EXPERTS in name:
            shapes.append((name, (num_experts, *shape[1:])))
        else:
            shapes.append((name, shape))
    shared_part, content = sharding.split(
        state, ExpertPlacement(num_experts, 0, num_experts), shapes
    )
    experts = sharding.map_experts(
        sharding.narrow(content, placement.first, placement.count), Tensor.clone
    )
    if held > placement.count:
        shared_part = copy.deepcopy(shared_part)
    return sharding.join(shared_part, experts, parameters, flat)


def whole(path: str | Path, state: State, parts: Collection[str] = sharding.PARTS) -> State:
    """Return a checkpoint's state with all experts, as of a single process.

    Generation passes `parts` without "optimizer".
    """
    if "optimizer" not in parts:
        state = {key: value for key, value in state.items() if key != "last_optimizer_state"}
    if not sharding.is_shared_part(state):
        return state
    return sharding.join(
        state, ShardReader(path, state).read(0, state["experts"]["num_experts"], parts)
    )
