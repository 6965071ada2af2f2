"""Resharding: a checkpoint with so many experts in each shard, or with all of them in the checkpoint's own file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.assemble import ShardReader, load_mapped, whole, write_shard
from fairseq_mtmoe.checkpoints.copying import remove_orphans, save_whole
from fairseq_mtmoe.checkpoints.layout import expert_folder, new_id, with_shard_list
from fairseq_mtmoe.checkpoints.prices import PRICES
from fairseq_mtmoe.checkpoints.sharding import Content, State, count_experts, is_shared_part, narrow, split
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.optim.saved_state import Parameters, has_shape

Track = Callable[[Iterable[int]], Iterable[int]]
# Buffers: the number of a format, a tensor whose type tells fairseq's sines of positions the model's, running prices.
_BUFFERS = (".version", "._float_tensor", *PRICES)
_EMBEDDINGS = ("embed_tokens.weight", "output_projection.weight")  # which fairseq's options share


def write_in_parts(source: Path, target: Path, experts_per_file: int, track: Track = iter) -> int:
    """Write to `target` the checkpoint `source` with so many experts in each file; returns the number of files.

    Holds the experts of one file at a time. `track` wraps the loop over the files, to show how far it is.

    Raises:
        UserError: `source` has no experts, or fewer, or is damaged.
    """
    state = load_mapped(source)
    num_experts = _count(source, state)
    if not 1 <= experts_per_file <= num_experts:
        raise_invalid("--experts-per-file", f"from 1 to the {num_experts} experts of `{source}`", experts_per_file)
    shared_part, read = _parts(source, state, num_experts)
    save_id = new_id()
    folder = expert_folder(target) / save_id
    files = []
    try:
        for first in track(range(0, num_experts, experts_per_file)):
            files.append(write_shard(folder, read(first, min(experts_per_file, num_experts - first))))
        file_io.save(with_shard_list(shared_part, save_id, files), str(target))
    finally:
        remove_orphans(target)
    return len(files)


def write_whole(source: Path, target: Path) -> None:
    """Write to `target` the checkpoint `source` with all experts in that file. Holds all of it.

    Raises:
        UserError: `source` has no experts, or it or a file of its experts is damaged.
    """
    state = load_mapped(source)
    _count(source, state)
    save_whole(whole(source, state), target)


def parameters_of(model: dict[str, Tensor]) -> Parameters:
    """Names and shapes of the trained parameters in a model's whole state, in the optimizer's order.

    The state has them in that order, with buffers, and with embeddings again where they are shared.
    """
    embeddings: list[Tensor] = []
    parameters = []
    for name, value in model.items():
        if name.endswith(_BUFFERS):
            continue
        if name.endswith(_EMBEDDINGS):
            # Values are compared because fairseq's copy from a GPU to the CPU makes several tensors of a shared one.
            if any(torch.equal(value, other) for other in embeddings):
                continue
            embeddings.append(value)
        parameters.append((name, value.shape))
    return parameters


def _count(source: Path, state: State) -> int:
    num_experts: int = state["experts"]["num_experts"] if is_shared_part(state) else count_experts(state["model"])
    if not num_experts:
        raise UserError(f"`{source}` must be of a model with experts, but is dense: there is nothing to reshard.")
    return num_experts


def _parts(source: Path, state: State, num_experts: int) -> tuple[State, Callable[[int, int], Content]]:
    """The shared part, and how to read some of the experts."""
    if is_shared_part(state):
        return state, ShardReader(source, state).read
    parameters = parameters_of(state["model"])
    try:
        shared_part, content = split(state, ExpertPlacement(num_experts, 0, num_experts), parameters)
        moments = shared_part.get("last_optimizer_state", {"state": {}})["state"]
        if not all(has_shape(entry, parameters[index][1]) for index, entry in moments.items()):
            raise UserError("Moments have other shapes than their parameters.")
    except UserError as error:
        raise UserError(
            f"`{source}` must hold the optimizer's moments of all parameters of its model for its experts to be told "
            "apart, but does not; go on from it in several processes, and their checkpoints will be in parts."
        ) from error
    return shared_part, lambda first, count: narrow(content, first, count)
