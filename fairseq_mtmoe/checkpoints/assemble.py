"""A checkpoint's state put together from its files: for a process with some of the experts, or with all in it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from pathlib import Path

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.layout import check_shard_list
from fairseq_mtmoe.checkpoints.reader import CheckpointFile, peek
from fairseq_mtmoe.checkpoints.shards import ShardReader
from fairseq_mtmoe.checkpoints.states import (
    PARTS,
    Content,
    State,
    count_experts,
    is_shared_part,
    join,
    narrow,
    owned,
    split,
    whole_shapes,
)
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.optim.saved_state import Parameters


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
