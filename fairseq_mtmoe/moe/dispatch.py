"""Where tokens go: a dispatcher takes them to their experts, and brings the experts' outputs back.

A dispatcher has no parameters. `LocalDispatcher` sorts the tokens by expert, where one process holds all experts;
`parallel/all_to_all_dispatcher.py` has the other one. Each expert takes its slice of the sorted rows without a copy,
balanced or not, and every shape is known before the routing is.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, kw_only=True)
class DispatchPlan:
    """Which rows are whose: what every dispatcher tells the experts; its own plan adds what it needs for itself.

    Attributes:
        offsets_N: the row at which the rows of each expert that this process holds end; rows of no expert come after.
        max_rows: how many rows no expert has more of, if that is known without looking.
        host_offsets_N: the same ends on the host, if they are known there.
    """

    offsets_N: Tensor
    max_rows: int | None = None
    host_offsets_N: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LocalPlan(DispatchPlan):
    """How the tokens of one process were sorted: the token in each row, and the row of each token."""

    token_T: Tensor
    row_T: Tensor


Plan = TypeVar("Plan", bound=DispatchPlan)


class Dispatcher(ABC, Generic[Plan]):
    """Takes tokens to their experts and back; the layer does not know where the experts are."""

    @abstractmethod
    def dispatch(self, x_TH: Tensor, expert_T: Tensor, max_rows: int | None = None) -> tuple[Tensor, Plan]:
        """Return the rows of this process's experts, (S, H), sorted, and the plan; padding has an `expert_T` from N."""

    @abstractmethod
    def combine(self, rows_SH: Tensor, plan: Plan, scale_T: Tensor | None = None) -> Tensor:
        """Return the experts' outputs in the tokens' order, each times its token's scale, if given: (T, H)."""


class LocalDispatcher(Dispatcher[LocalPlan]):
    """Sorts tokens by expert, each expert's in their order: the rows are T. Nothing waits for a GPU."""

    def __init__(self, num_experts: int) -> None:
        self.num_experts = num_experts

    def dispatch(self, x_TH: Tensor, expert_T: Tensor, max_rows: int | None = None) -> tuple[Tensor, LocalPlan]:
        sorted_T, token_T = expert_T.sort(stable=True)
        row_T = torch.empty_like(token_T).scatter(0, token_T, torch.arange(len(token_T), device=token_T.device))
        offsets_N = torch.searchsorted(sorted_T, torch.arange(self.num_experts, device=token_T.device), right=True)
        plan = LocalPlan(offsets_N=offsets_N, max_rows=max_rows, token_T=token_T, row_T=row_T)
        return _reordered(x_TH, token_T, row_T), plan

    def combine(self, rows_SH: Tensor, plan: LocalPlan, scale_T: Tensor | None = None) -> Tensor:
        if scale_T is None:
            return _reordered(rows_SH, plan.row_T, plan.token_T)
        scaled: Tensor = _Scaled.apply(rows_SH, scale_T, plan.row_T, plan.token_T)  # type: ignore[no-untyped-call]
        return scaled


def _reordered(rows: Tensor, order: Tensor, order_back: Tensor) -> Tensor:
    reordered: Tensor = _Reordered.apply(rows, order, order_back)  # type: ignore[no-untyped-call]
    return reordered


class _Reordered(torch.autograd.Function):
    """Rows in another order; the backward pass takes them back without a sum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, order_back: Tensor) -> Tensor:
        ctx.save_for_backward(order_back)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (order_back,) = ctx.saved_tensors
        return grad.index_select(0, order_back), None, None


class _Scaled(torch.autograd.Function):
    """Rows in another order, times a number each, in one pass over memory."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, scale: Tensor, order: Tensor, order_back: Tensor) -> Tensor:
        ctx.save_for_backward(rows, scale, order, order_back)
        return rows.index_select(0, order).mul_(scale.unsqueeze(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        rows, scale, order, order_back = ctx.saved_tensors
        grad_rows, grad_scale = grad.index_select(0, order_back), None
        if ctx.needs_input_grad[1]:
            grad_scale = torch.linalg.vecdot(grad_rows.to(scale.dtype), rows.to(scale.dtype)).index_select(0, order)
        grad_rows.mul_(scale.index_select(0, order_back).unsqueeze(1))
        return grad_rows, grad_scale, None, None
