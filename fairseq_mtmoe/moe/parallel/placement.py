"""Expert placement: the experts of each rank, and the ranks of its all-to-all.

`N` experts and `W` ranks need not divide each other. With `P = gcd(N, W)`, each `P` consecutive
ranks form a group that holds all experts, `N/P` on each rank. The `W/P` groups are replicas of
each other. Without a common divisor every rank holds all experts, and there is no all-to-all.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

BUCKET = 2**23  # bytes; joining larger tensors costs more than separate messages

_whole: ContextVar[bool] = ContextVar("whole_models", default=False)


@dataclass(frozen=True)
class ExpertPlacement:
    """The experts of one rank: `count` of `num_experts`, from number `first` on.

    Attributes:
        group: the P ranks of the all-to-all, in the order of their experts; None if this rank
            holds all experts.
        replicas: the ranks with the same experts, whose gradients are averaged; None unless there
            are several and experts are sharded. (Experts that every rank holds are ordinary
            parameters.)
        replica: the number of this rank's group, from 0; replica 0 writes checkpoints.
    """

    num_experts: int
    first: int
    count: int
    group: Any = None
    group_size: int = 1
    replicas: Any = None
    replica: int = 0

    @property
    def is_sharded(self) -> bool:
        """Whether other ranks hold some of the experts."""
        return self.group is not None

    def local(self, value: Tensor) -> Tensor:
        """Return this rank's part of a tensor (N, …), or a tensor (count, …) as it is."""
        return value if len(value) == self.count else value[self.first : self.first + self.count]

    def __deepcopy__(self, memo: dict[int, Any]) -> ExpertPlacement:
        return self  # a copy of a model (for averaging) has the same process groups


def place_experts(num_experts: int, timeout: float | None = None) -> ExpertPlacement:
    """Return the placement of this rank's experts; a collective call.

    An all-to-all with a silent rank fails after `timeout` seconds.
    """
    if are_whole() or not dist.is_available() or not dist.is_initialized():
        return ExpertPlacement(num_experts, 0, num_experts)
    return _new_placement(num_experts, timeout, dist.group.WORLD)


@cache
def _new_placement(num_experts: int, timeout: float | None, world: Any) -> ExpertPlacement:
    """Return a placement; layers in one `world` with as many experts share its groups."""
    world_size = dist.get_world_size()
    rank = dist.get_rank()
    size = math.gcd(num_experts, world_size)
    if size == 1:
        return ExpertPlacement(num_experts, 0, num_experts)
    position = rank % size
    replica = rank // size
    count = num_experts // size
    limit = None if timeout is None else timedelta(seconds=timeout)
    groups = []
    for start in range(0, world_size, size):
        groups.append(dist.new_group(list(range(start, start + size)), timeout=limit))
    replicas: list[Any] = [None] * size
    if world_size > size:
        for start in range(size):
            ranks = list(range(start, world_size, size))
            replicas[start] = dist.new_group(ranks, timeout=limit)
    return ExpertPlacement(
        num_experts, position * count, count, groups[replica], size, replicas[position], replica
    )


@contextmanager
def whole_models() -> Iterator[None]:
    """Let models built inside hold all experts, to evaluate separate batches per rank."""
    token = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(token)


def are_whole() -> bool:
    """Return whether models hold all experts now; see `whole_models`."""
    return _whole.get()


@torch.no_grad()
def average_over_replicas(tensors: list[Tensor], placement: ExpertPlacement) -> None:
    """Replace gradients of this rank's experts by their means over the replicas."""
    if placement.replicas is None:
        return
    size = dist.get_world_size(placement.replicas)
    for bucket in buckets(tensors):
        joined = bucket[0]
        if len(bucket) > 1:
            joined = torch.cat([tensor.reshape(-1) for tensor in bucket])
        dist.all_reduce(joined.div_(size), group=placement.replicas)
        if len(bucket) > 1:
            parts = torch.split(joined, [tensor.numel() for tensor in bucket])
            means = [part.view_as(tensor) for tensor, part in zip(bucket, parts, strict=True)]
            torch._foreach_copy_(bucket, means)


def buckets(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group small tensors of a type up to `BUCKET` bytes; large tensors stay alone."""
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
