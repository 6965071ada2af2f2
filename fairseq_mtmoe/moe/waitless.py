"""Balanced assignment on a GPU: a fixed sequence of operations, of which none waits for a result.

As in `assignment.py`: prices, choices, and a few rounds in which surplus tokens move to where they lose least. How many
tokens there are, and what is left to do, is known to the GPU only. So every round is gone through, whether needed or
not, and at the end places that are still free go to the tokens that are still too many, in order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_mtmoe.moe.prices import newton_step, sample_places

# Temperatures with their numbers of steps; the first ones with a sample of the tokens.
SAMPLED = ((0.25, 4), (0.0625, 3), (0.0156, 3))
ALL = ((0.0156, 2), (0.0039, 2), (0.00098, 2))
SAMPLE = 64  # tokens per expert
ROUNDS = 4


@torch.no_grad()
def waitless_assignment(scores_TN: Tensor, padding_T: Tensor | None = None) -> Tensor:
    """The expert of each token, (T,), as `balanced_assignment` without `exact`, but with no bound on its loss.

    Args:
        scores_TN: as there, N at least 2 and T at least 1.
        padding_T: True at tokens that take no part; their expert is N.
    """
    num_tokens, num_experts = scores_TN.shape
    assert num_tokens >= 1 and num_experts >= 2
    real_T = torch.ones(num_tokens, device=scores_TN.device) if padding_T is None else (~padding_T).float()
    with torch.autocast(scores_TN.device.type, enabled=False):
        scaled_TN = _scaled(scores_TN.float(), real_T)
        prices_N = _prices(scaled_TN, real_T)
    value_TN = scaled_TN - prices_N
    best_T, expert_T = value_TN.max(1)
    expert_T = expert_T.masked_fill(real_T == 0, num_experts)
    share_N = _shares(prices_N, real_T.sum().long())
    for _ in range(ROUNDS):
        expert_T = _moved(value_TN, best_T, expert_T, share_N)
    return _filled(expert_T, share_N)


def _scaled(scores_TN: Tensor, real_T: Tensor) -> Tensor:
    """Finite scores with a token's highest at 0 and, on average, its lowest at -1."""
    finite_TN = scores_TN.isfinite()
    low = torch.where(finite_TN, scores_TN, torch.inf).amin()
    high = torch.where(finite_TN, scores_TN, -torch.inf).amax()
    size = torch.maximum(low.abs(), high.abs())
    size = torch.where(size.isfinite() & (size > 0), size, 1)
    # Where nothing is finite, `low` is +inf: all scores count as the same.
    odd_TN = torch.where(scores_TN == torch.inf, high, low).nan_to_num(0, 0, 0)
    scores_TN = torch.where(finite_TN, scores_TN, odd_TN) / size
    below_TN = scores_TN - scores_TN.amax(1, keepdim=True)
    spread = -(below_TN.amin(1) * real_T).sum() / real_T.sum().clamp(min=1)
    return below_TN / torch.where(spread > torch.finfo(spread.dtype).tiny, spread, 1)


def _prices(scores_TN: Tensor, real_T: Tensor) -> Tensor:
    num_tokens, num_experts = scores_TN.shape
    size = min(SAMPLE * num_experts, num_tokens)
    place = sample_places(size, num_tokens, scores_TN.device)
    prices_N = (scores_TN * real_T.unsqueeze(1)).sum(0) / real_T.sum().clamp(min=1)
    sample = scores_TN.index_select(0, place), real_T.index_select(0, place)
    for schedule, (scores, real) in ((SAMPLED, sample), (ALL, (scores_TN, real_T))):
        for temperature, steps in schedule:
            for _ in range(steps):
                prices_N = prices_N + temperature * newton_step(scores, prices_N, temperature, real)
    return prices_N


def _shares(prices_N: Tensor, num_tokens: Tensor) -> Tensor:
    """Each expert's number of tokens, (N,); the dearest get one more where they do not divide."""
    num_experts = len(prices_N)
    rank_N = prices_N.argsort(descending=True, stable=True).argsort()
    return num_tokens // num_experts + (rank_N < num_tokens % num_experts)


def _moved(value_TN: Tensor, best_T: Tensor, expert_T: Tensor, share_N: Tensor) -> Tensor:
    """Experts with too many tokens let go of the cheapest, experts with room take the cheapest of those."""
    num_experts = len(share_N)
    surplus_N = _counts(expert_T, num_experts) - share_N
    value_T, target_T = value_TN.masked_fill(surplus_N >= 0, -torch.inf).max(1)
    # Padding belongs to expert N, which has no surplus.
    surplus_N = torch.cat([surplus_N, surplus_N.new_zeros(1)])
    loss_T = torch.where(surplus_N[expert_T] > 0, best_T - value_T, torch.inf)
    order = loss_T.argsort(stable=True)
    source, target = expert_T[order], target_T[order]
    leaves = loss_T[order].isfinite() & (_ranks(source, num_experts) < surplus_N[source])
    wanted = torch.where(leaves, target, num_experts)
    arrives = leaves & (_ranks(wanted, num_experts) < -surplus_N[target])
    return expert_T.scatter(0, order, torch.where(arrives, target, source))


def _filled(expert_T: Tensor, share_N: Tensor) -> Tensor:
    """Equal shares, whatever is left to do."""
    num_experts = len(share_N)
    room_N = (share_N - _counts(expert_T, num_experts)).clamp(min=0)
    shares = torch.cat([share_N, share_N.new_full((1,), len(expert_T))])
    surplus_T = _ranks(expert_T, num_experts) >= shares[expert_T]
    place_T = surplus_T.cumsum(0) - 1
    target_T = torch.searchsorted(room_N.cumsum(0), place_T, right=True)
    return torch.where(surplus_T, target_T, expert_T)


def _counts(expert_T: Tensor, num_experts: int) -> Tensor:
    counts = expert_T.new_zeros(num_experts + 1)
    return counts.scatter_add(0, expert_T, torch.ones_like(expert_T))[:num_experts]


def _ranks(group_T: Tensor, num_experts: int) -> Tensor:
    """How many earlier entries belong to the same group, of 0 to N, as each entry."""
    ordered, order = group_T.sort(stable=True)
    groups = torch.arange(num_experts + 1, device=group_T.device)
    first = torch.searchsorted(ordered, groups)
    places = torch.arange(len(group_T), device=group_T.device)
    return torch.empty_like(order).scatter(0, order, places - first[ordered])
