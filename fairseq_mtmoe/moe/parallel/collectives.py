"""Rows that change processes, there and back, with their gradients; and a record of what that costs.

All processes of a group call these together, in the same order, also one that has no rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.autograd.function import once_differentiable

from fairseq_mtmoe.moe.device_kind import is_on_gpu

Counts = Sequence[int]


class CommRecord:
    """Time, bytes that left this process, and number of one layer's exchanges, while `enabled` (not at first)."""

    def __init__(self) -> None:
        self.enabled = False
        self.reset()

    def reset(self) -> None:
        self.num_bytes = 0
        self.exchanges = 0
        self._seconds = 0.0
        self._events: list[tuple[Any, Any]] = []

    @property
    def seconds(self) -> float:
        """Time in exchanges, waiting for others included; on a GPU this waits for those under way."""
        for start, end in self._events:
            end.synchronize()
            self._seconds += start.elapsed_time(end) / 1000
        self._events.clear()
        return self._seconds

    @contextmanager
    def measure(self, num_rows: int, rows: Tensor) -> Iterator[None]:
        """Record an operation in which so many of the rows, or as many like them, leave this process."""
        if not self.enabled:
            yield
            return
        self.num_bytes += num_rows * math.prod(rows.shape[1:]) * rows.element_size()
        self.exchanges += 1
        if is_on_gpu(rows):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            yield
            end.record()
            self._events.append((start, end))
        else:
            begin = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - begin

    def __deepcopy__(self, memo: dict[int, Any]) -> CommRecord:
        return CommRecord()  # events cannot be copied, and a copy of a model has exchanged nothing


def all_to_all(rows: Tensor, send: Counts, receive: Counts, group: dist.ProcessGroup, record: CommRecord) -> Tensor:
    """Give `send[p]` of the rows, in order, to process p, and take `receive[p]` from it; no gradients."""
    arrived = rows.new_empty(sum(receive), *rows.shape[1:])
    with record.measure(sum(send) - send[dist.get_rank(group)], rows):
        dist.all_to_all_single(arrived, rows.contiguous(), list(receive), list(send), group=group)
    return arrived


def all_to_all_alike(values: Tensor, group: dist.ProcessGroup, record: CommRecord) -> Tensor:
    """Give each of P processes an equal part of the values (P·n,), and take as many from each."""
    arrived = torch.empty_like(values)
    with record.measure(len(values) - len(values) // dist.get_world_size(group), values):
        dist.all_to_all_single(arrived, values, group=group)
    return arrived


def gather_numbers(
    numbers: Counts, device: torch.device, group: dist.ProcessGroup, record: CommRecord
) -> list[list[int]]:
    """Return, for each of the numbers, those that all processes give, in their order."""
    size = dist.get_world_size(group)
    own = torch.cat([torch.full((1,), number, device=device) for number in numbers])
    found = [torch.empty_like(own) for _ in range(size)]
    with record.measure(len(own) * (size - 1), own[:1]):
        dist.all_gather(found, own, group=group)
    gathered: list[list[int]] = torch.stack(found, 1).tolist()
    return gathered


def exchange(
    rows: Tensor, send: Counts, receive: Counts, group: dist.ProcessGroup, record: CommRecord, gradient_scale: float
) -> Tensor:
    """`all_to_all` whose gradients go the way back, each times `gradient_scale`."""
    operands = rows, send, receive, group, record, gradient_scale
    exchanged: Tensor = _Exchanged.apply(*operands)  # type: ignore[no-untyped-call]
    return exchanged


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        send: Counts,
        receive: Counts,
        group: dist.ProcessGroup,
        record: CommRecord,
        scale: float,
    ) -> Tensor:
        ctx.parts, ctx.group, ctx.record, ctx.scale = (send, receive), group, record, scale
        return all_to_all(rows, send, receive, group, record)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        send, receive = ctx.parts
        grad = all_to_all(grad, receive, send, ctx.group, ctx.record)
        return grad.mul_(ctx.scale), None, None, None, None, None
