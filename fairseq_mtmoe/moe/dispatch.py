"""Where tokens go: sort them by expert, and bring the experts' outputs back into the tokens' order.

A dispatcher has no parameters and knows nothing of what experts compute. Sorted rows are all there is: each expert
takes its slice without a copy, balanced or not, and every shape is known before the routing is. Letters: see README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class DispatchPlan:
    """How tokens were sorted, to be handed to `combine`.

    Attributes:
        token_T: the token in each row.
        row_T: the row of each token.
        ends_N: the row at which each expert's tokens end; tokens of no expert stand after the last.
    """

    token_T: Tensor
    row_T: Tensor
    ends_N: Tensor


def dispatch(x_TH: Tensor, expert_T: Tensor, num_experts: int) -> tuple[Tensor, DispatchPlan]:
    """Sort `x_TH` by the expert of each token; an expert's tokens keep their order.

    Args:
        x_TH: tokens.
        expert_T: the expert of each, from 0 to N-1; N or more for a token of no expert (padding).
        num_experts: N.

    Returns:
        The sorted rows, (T, H), and the plan that undoes it. Nothing waits for a GPU.
    """
    sorted_T, token_T = expert_T.sort(stable=True)
    row_T = torch.empty_like(token_T).scatter(0, token_T, torch.arange(len(token_T), device=token_T.device))
    ends_N = torch.searchsorted(sorted_T, torch.arange(num_experts, device=token_T.device), right=True)
    plan = DispatchPlan(token_T, row_T, ends_N)
    return _reordered(x_TH, token_T, row_T), plan


def combine(rows_TH: Tensor, plan: DispatchPlan, scale_T: Tensor | None = None) -> Tensor:
    """The rows in the tokens' order again, each times its token's scale, if there is one: (T, H) to (T, H)."""
    if scale_T is None:
        return _reordered(rows_TH, plan.row_T, plan.token_T)
    scaled: Tensor = _Scaled.apply(rows_TH, scale_T, plan.row_T, plan.token_T)  # type: ignore[no-untyped-call]
    return scaled


def _reordered(rows: Tensor, order: Tensor, order_back: Tensor) -> Tensor:
    reordered: Tensor = _Reordered.apply(rows, order, order_back)  # type: ignore[no-untyped-call]
    return reordered


class _Reordered(torch.autograd.Function):
    """Rows in another order; the backward pass needs no sum, as torch's own would, only the order back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, order_back: Tensor) -> Tensor:
        ctx.save_for_backward(order_back)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (order_back,) = ctx.saved_tensors
        return grad.index_select(0, order_back), None, None


class _Scaled(torch.autograd.Function):
    """Rows in another order, times a number each; both in one pass over memory less than one after the other."""

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
