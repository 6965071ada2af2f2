"""Dispatchers group tokens by expert, and restore their order after the experts.

A dispatcher has no parameters. `LocalDispatcher` sorts tokens by expert if one process holds all
experts; `parallel/all_to_all_dispatcher.py` is for sharded experts. Each expert reads its slice
of the sorted rows without a copy, balanced or not, and all shapes are known before the routing.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True, kw_only=True)
class DispatchPlan:
    """The experts' rows; subclasses add data that their dispatcher needs to combine.

    Attributes:
        offsets_N: end of the rows of each local expert; rows without an expert come last.
        max_rows: upper bound of an expert's number of rows, if known without synchronisation.
        host_offsets_N: `offsets_N` on the host, if known there.
    """

    offsets_N: Tensor
    max_rows: int | None = None
    host_offsets_N: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LocalPlan(DispatchPlan):
    """The order of a rank's sorted tokens: token of each row, row of each token."""

    token_T: Tensor
    row_T: Tensor


Plan = TypeVar("Plan", bound=DispatchPlan)


class Dispatcher(ABC, Generic[Plan]):
    """Sends tokens to their experts and back, wherever the experts are."""

    @abstractmethod
    def dispatch(
        self,
        x_TH: Tensor,
        expert_T: Tensor,
        max_rows: int | None = None,
        arriving_PE: Tensor | None = None,
    ) -> tuple[Tensor, Plan]:
        """Return the sorted rows of this rank's experts, (S, H), and the plan.

        Padding has an `expert_T` of N or more. `max_rows` and `arriving_PE` (see `Routing`) save
        a communication.
        """

    @abstractmethod
    def combine(self, rows_SH: Tensor, plan: Plan, scale_T: Tensor | None = None) -> Tensor:
        """Return outputs in the tokens' order, (T, H), times the scale, if any."""


class LocalDispatcher(Dispatcher[LocalPlan]):
    """Sorts the T tokens by expert, stably and without synchronisation."""

    def __init__(self, num_experts: int) -> None:
        self.num_experts = num_experts

    def dispatch(
        self,
        x_TH: Tensor,
        expert_T: Tensor,
        max_rows: int | None = None,
        arriving_PE: Tensor | None = None,
    ) -> tuple[Tensor, LocalPlan]:
        """Return the rows (T, H), sorted by expert, and the plan; see `Dispatcher`."""
        token_T, row_T, offsets_N = sorted_by_expert(expert_T, self.num_experts)
        plan = LocalPlan(offsets_N=offsets_N, max_rows=max_rows, token_T=token_T, row_T=row_T)
        return _reordered(x_TH, token_T, row_T), plan

    def combine(self, rows_SH: Tensor, plan: LocalPlan, scale_T: Tensor | None = None) -> Tensor:
        """Return the rows in the tokens' order, (T, H), times `scale_T` if given."""
        return _reordered(rows_SH, plan.row_T, plan.token_T, scale_T)


def sorted_by_expert(expert_T: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the token of each row, the row of each token, (T,), and offsets, (N,)."""
    sorted_T, token_T = expert_T.sort(stable=True)
    number_T = torch.arange(len(token_T), device=token_T.device)
    row_T = torch.empty_like(token_T).scatter(0, token_T, number_T)
    expert_N = torch.arange(num_experts, device=token_T.device)
    return token_T, row_T, torch.searchsorted(sorted_T, expert_N, right=True)


def _reordered(
    rows: Tensor, order: Tensor, order_back: Tensor, scale: Tensor | None = None
) -> Tensor:
    operands = rows, order, order_back, scale
    reordered: Tensor = _Reordered.apply(*operands)  # type: ignore[no-untyped-call]
    return reordered


class _Reordered(torch.autograd.Function):
    """Reorders rows, and scales them in the same pass over memory.

    The backward pass restores their order without a sum.
    """

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, order: Tensor, order_back: Tensor, scale: Tensor | None
    ) -> Tensor:
        reordered = rows.index_select(0, order)
        if scale is None:
            ctx.save_for_backward(order_back)
            return reordered
        ctx.save_for_backward(order_back, order, rows, scale)
        return reordered.mul_(scale.unsqueeze(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        order_back, *scaling = ctx.saved_tensors
        grad_rows = grad.index_select(0, order_back)
        if not scaling:
            return grad_rows, None, None, None
        order, rows, scale = scaling
        grad_scale = None
        if ctx.needs_input_grad[3]:
            dots = torch.linalg.vecdot(grad_rows.to(scale.dtype), rows.to(scale.dtype))
            grad_scale = dots.index_select(0, order)
        grad_rows.mul_(scale.index_select(0, order_back).unsqueeze(1))
        return grad_rows, None, None, grad_scale
