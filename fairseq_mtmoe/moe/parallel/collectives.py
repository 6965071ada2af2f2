"""All-to-all of rows with gradients, and a record of its cost.

These are collective calls: all ranks of a group make them in the same order, also ranks without
rows.
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
    """Time and sent bytes of a layer's communications, while `enabled`."""

    def __init__(self) -> None:
        self.enabled = False
        self.reset()

    def reset(self) -> None:
        """Start from zero."""
        self.num_bytes = 0
        self._seconds = 0.0
        self._events: list[tuple[Any, Any]] = []

    @property
    def seconds(self) -> float:
        """Seconds of communication, with waiting for other ranks.

        Reading them synchronises on a GPU.
        """
        for start, end in self._events:
            end.synchronize()
            self._seconds += start.elapsed_time(end) / 1000
        self._events.clear()
        return self._seconds

    @contextmanager
    def measure(self, num_rows: int, rows: Tensor) -> Iterator[None]:
        """Record an operation that sends `num_rows` rows like `rows` to other ranks."""
        if not self.enabled:
            yield
            return
        self.num_bytes += num_rows * math.prod(rows.shape[1:]) * rows.element_size()
        if is_on_gpu(rows):
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            yield
            end.record()
            self._events.append((start, end))
        else:
            begin = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - begin

    def __deepcopy__(self, memo: dict[int, Any]) -> CommRecord:
        return CommRecord()  # events cannot be copied, and a copy of a model has sent nothing


def all_to_all(
    rows: Tensor, send: Counts, receive: Counts, group: dist.ProcessGroup, record: CommRecord
) -> Tensor:
    """Send `send[p]` rows, in order, to rank p, receive `receive[p]`; no gradients."""
    arrived = rows.new_empty(sum(receive), *rows.shape[1:])
    with record.measure(sum(send) - send[dist.get_rank(group)], rows):
        dist.all_to_all_single(arrived, rows.contiguous(), list(receive), list(send), group=group)
    return arrived


def gather_numbers(
    numbers: Counts, device: torch.device, group: dist.ProcessGroup, record: CommRecord
) -> list[list[int]]:
    """Return, for each of the numbers, the values of all ranks in order."""
    size = dist.get_world_size(group)
    sent = torch.cat([torch.full((1,), number, device=device) for number in numbers])
    parts = [torch.empty_like(sent) for _ in range(size)]
    with record.measure(len(sent) * (size - 1), sent[:1]):
        dist.all_gather(parts, sent, group=group)
    gathered: list[list[int]] = torch.stack(parts, 1).tolist()
    return gathered


def exchange(
    rows: Tensor,
    send: Counts,
    receive: Counts,
    group: dist.ProcessGroup,
    record: CommRecord,
    gradient_scale: float,
) -> Tensor:
    """Compute `all_to_all` with gradients, which are sent back times `gradient_scale`."""
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
        ctx.parts = (send, receive)
        ctx.group = group
        ctx.record = record
        ctx.scale = scale
        return all_to_all(rows, send, receive, group, record)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        send, receive = ctx.parts
        grad = all_to_all(grad, receive, send, ctx.group, ctx.record)
        return grad.mul_(ctx.scale), None, None, None, None, None
