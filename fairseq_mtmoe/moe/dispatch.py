"""Where tokens go: group them by expert, and bring the experts' outputs back into the tokens' order.

A dispatcher has no parameters and knows nothing of what experts compute. Balanced routing (BASE, training) becomes one
tensor (N, C, H) with at most one empty row per expert, for one batched product. Any other routing becomes the tokens
sorted by expert, (T, H), of which each expert takes its slice without a copy. Letters: see README.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DispatchPlan:
    """How tokens were grouped, to be handed to `combine`.

    Attributes:
        row_T: the row of each token among the rows of the groups, (T,).
        counts: the number of tokens of each expert.
        capacity: C if the groups are one tensor (N, C, H); None if they are the sorted tokens (T, H).
    """

    row_T: Tensor
    counts: tuple[int, ...]
    capacity: int | None


def dispatch(x_TH: Tensor, expert_T: Tensor, num_experts: int) -> tuple[Tensor, DispatchPlan]:
    """Group `x_TH` by the expert of each token; within a group tokens keep their order.

    Returns:
        The groups, (N, C, H) when every expert has C or C-1 tokens (and at least one), or when there is no token at
        all; else (T, H), sorted by expert. And the plan that undoes it.
    """
    num_tokens = len(x_TH)
    counts_N = torch.bincount(expert_T, minlength=num_experts)
    counts = tuple(counts_N.tolist())
    assert len(counts) == num_experts
    order_T = torch.argsort(expert_T, stable=True)
    row_T = torch.empty_like(order_T)
    row_T[order_T] = torch.arange(num_tokens, device=x_TH.device)
    # An expert without tokens must cost nothing, so a batched product over all experts is for when all have work.
    balanced = num_tokens == 0 or (min(counts) >= 1 and max(counts) - min(counts) <= 1)
    if not balanced:
        return _place(x_TH, row_T, num_tokens), DispatchPlan(row_T, counts, None)
    capacity = max(counts)
    padding_N = torch.arange(num_experts, device=x_TH.device) * capacity - (counts_N.cumsum(0) - counts_N)
    row_T = row_T + padding_N[expert_T]
    rows = _place(x_TH, row_T, num_experts * capacity)
    return rows.view(num_experts, capacity, x_TH.shape[1]), DispatchPlan(row_T, counts, capacity)


def combine(grouped: Tensor, plan: DispatchPlan) -> Tensor:
    """The rows of the groups in the tokens' order again: (N, C, H) or (T, H) to (T, H)."""
    return grouped.reshape(-1, grouped.shape[-1]).index_select(0, plan.row_T)


def _place(x_TH: Tensor, row_T: Tensor, num_rows: int) -> Tensor:
    return x_TH.new_zeros(num_rows, x_TH.shape[1]).index_copy(0, row_T, x_TH)
