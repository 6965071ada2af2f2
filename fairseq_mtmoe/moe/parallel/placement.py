"""Which experts a process holds, and which processes it exchanges tokens with.

`N` experts and `W` processes need not divide each other. With `P = gcd(N, W)`, each `P` consecutive processes are an
exchange group, which holds all experts, `N/P` in each process; the `W/P` groups are replicas of each other. Without a
common divisor every process holds all experts and nothing is exchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

BUCKET = 2**23  # bytes: above this, the copies of joining cost more than a message of its own

_whole: ContextVar[bool] = ContextVar("whole_models", default=False)
_placements: dict[tuple[int, Any], ExpertPlacement] = {}


@dataclass(frozen=True)
class ExpertPlacement:
    """Which of `num_experts` experts one process holds: `count` of them, from number `first` on.

    Attributes:
        group: the P processes that tokens are exchanged with, in the order of their experts; None if this one holds
            all.
        replicas: the processes that hold the same experts, whose gradients are averaged; None unless there are several
            and tokens are exchanged. (Experts that every process holds are parameters like all others.)
        replica: the number of this process's exchange group, from 0; replica 0 writes checkpoints.
    """

    num_experts: int
    first: int
    count: int
    group: dist.ProcessGroup | None = None
    group_size: int = 1
    replicas: dist.ProcessGroup | None = None
    replica: int = 0

    @property
    def is_sharded(self) -> bool:
        return self.group is not None

    def local(self, value: Tensor) -> Tensor:
        """Return this process's part of a tensor (N, …) of all experts; or of its own alone as it is."""
        return value if len(value) == self.count else value[self.first : self.first + self.count]

    def __deepcopy__(self, memo: dict[int, Any]) -> ExpertPlacement:
        return self  # a copy of a model (averaging) talks to the same processes


def place_experts(num_experts: int, timeout: float | None = None) -> ExpertPlacement:
    """Return this process's experts; of several processes all must call it, in the same order.

    An exchange with a silent process fails after `timeout` seconds.
    """
    if are_whole() or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ExpertPlacement(num_experts, 0, num_experts)
    world = dist.group.WORLD
    key = (num_experts, world)
    if key not in _placements:
        for old in [old for old in _placements if old[1] is not world]:  # the processes were joined anew
            del _placements[old]
        _placements[key] = _new_placement(num_experts, timeout)
    return _placements[key]


def _new_placement(num_experts: int, timeout: float | None) -> ExpertPlacement:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    size = math.gcd(num_experts, world_size)
    if size == 1:
        return ExpertPlacement(num_experts, 0, num_experts)
    position, replica, count = rank % size, rank // size, num_experts // size
    groups = [_new_group(range(start, start + size), timeout) for start in range(0, world_size, size)]
    starts = range(size) if world_size > size else ()
    replicas = [_new_group(range(start, world_size, size), timeout) for start in starts] or [None] * size
    return ExpertPlacement(num_experts, position * count, count, groups[replica], size, replicas[position], replica)


def _new_group(ranks: range, timeout: float | None) -> Any:
    return dist.new_group(list(ranks), timeout=None if timeout is None else timedelta(seconds=timeout))


@contextmanager
def whole_models() -> Iterator[None]:
    """Models built inside hold all experts: for evaluation, where processes have batches of their own."""
    token = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(token)


def are_whole() -> bool:
    return _whole.get()


@torch.no_grad()
def average_over_replicas(tensors: list[Tensor], placement: ExpertPlacement) -> None:
    """Replace gradients of this process's experts by their means over the replicas."""
    if placement.replicas is None:
        return
    size = dist.get_world_size(placement.replicas)
    for bucket in buckets(tensors):
        joined = bucket[0] if len(bucket) == 1 else torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(joined.div_(size), group=placement.replicas)
        if len(bucket) > 1:
            parts = torch.split(joined, [tensor.numel() for tensor in bucket])
            torch._foreach_copy_(bucket, [part.view_as(tensor) for tensor, part in zip(bucket, parts, strict=True)])


def buckets(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return tensors to send together: small ones of a type up to `BUCKET` bytes, large ones alone."""
    full: list[list[Tensor]] = []
    open_ones: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor.nbytes > BUCKET:
            full.append([tensor])
            continue
        bucket = open_ones.setdefault(tensor.dtype, [])
        if sum(other.nbytes for other in bucket) + tensor.nbytes > BUCKET:
            full.append(bucket)
            bucket = open_ones[tensor.dtype] = []
        bucket.append(tensor)
    return [*full, *open_ones.values()]
