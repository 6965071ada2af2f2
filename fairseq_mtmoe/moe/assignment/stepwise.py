"""Balanced assignment in torch operations: the reference, and the fallback without a faster form.

It computes prices (`dual_prices.py`) and each token's choice, and moves the few surplus tokens elsewhere, the cheapest
first. Their loss, the duality gap, bounds the distance to the optimum. If it is too large, or the optimum is wanted,
`augmenting_paths.py` moves them instead.
"""

import torch
from torch import Tensor

from fairseq_mtmoe.moe.assignment import dual_prices
from fairseq_mtmoe.moe.assignment.augmenting_paths import assign_by_augmenting_paths
from fairseq_mtmoe.moe.assignment.dual_prices import COARSE, FINE, Assignment, in_units_of, solve_dual

# All in units of the mean over tokens of highest - lowest score; the documented bound is twice the accepted loss.
ACCEPTED_LOSS = 5e-4  # per token, of a fast assignment
TOLERANCE = 1e-4  # additional loss of a token over the cheapest one, so that many move along a path together
EXACT_TOLERANCE = 1e-9
ROUNDS = 8  # of moving surplus tokens before augmenting paths are used
SAFE_SIZES = (1e-25, 1e25)  # sums of scores of this size neither overflow nor vanish in float32


@torch.no_grad()
def stepwise_assignment(scores_TN: Tensor, start_N: Tensor | None = None, *, exact: bool = False) -> Assignment:
    """Compute `priced_assignment` step by step; N is at least 2, T at least 1."""
    with torch.autocast(scores_TN.device.type, enabled=False):
        wide = exact or scores_TN.dtype == torch.float64
        scaled_TN, size = _scaled(scores_TN.double() if wide else scores_TN.float())
        prices_N = dual_prices.resumed_prices(scaled_TN.float(), None if start_N is None else _start(start_N, size))
        if prices_N is None:
            prices_N = solve_dual(scaled_TN.float(), COARSE)
        if not exact:
            expert_T = _moved_surplus(scaled_TN, prices_N)
            if expert_T is not None:
                return Assignment(expert_T, in_units_of(size, prices_N))
        prices_N = solve_dual(scaled_TN.float(), FINE, prices_N).to(scaled_TN.dtype)
        expert_T, prices_N = assign_by_augmenting_paths(scaled_TN, prices_N, EXACT_TOLERANCE if exact else TOLERANCE)
        return Assignment(expert_T, in_units_of(size, prices_N))


def _start(start_N: Tensor, size: Tensor) -> Tensor:
    """Return prices of an earlier step in units of the scaled scores, of mean 0."""
    wide_N = start_N.double()
    return ((wide_N - wide_N.mean()) / size).float()


def _scaled(scores_TN: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores scaled to a mean range of 0 to -1, and the scale (0: constant)."""
    low_T, high_T = scores_TN.amin(1), scores_TN.amax(1)
    size = torch.maximum(low_T.abs().amax(), high_T.abs().amax())
    if SAFE_SIZES[0] < size < SAFE_SIZES[1]:
        size = torch.ones_like(size)
    else:  # NaN and infinity come here too
        scores_TN, size = _tamed(scores_TN)
        low_T, high_T = scores_TN.amin(1), scores_TN.amax(1)
    spread = (high_T - low_T).mean()
    smallest = torch.finfo(spread.dtype).tiny  # smaller numbers have no finite reciprocal
    is_constant = spread <= smallest
    scaled_TN = (scores_TN - high_T.unsqueeze(1)).mul_(1 / torch.where(is_constant, 1, spread))
    return scaled_TN, torch.where(is_constant, 0, spread.double() * size)


def _tamed(scores_TN: Tensor) -> tuple[Tensor, Tensor]:
    """Return finite scores between -1 and 1, and the scale."""
    finite_TN = scores_TN.isfinite()
    low = torch.where(finite_TN, scores_TN, torch.inf).amin()
    high = torch.where(finite_TN, scores_TN, -torch.inf).amax()
    if low > high:  # nothing is finite
        low, high = torch.zeros_like(low), torch.zeros_like(high)
    scores_TN = torch.where(finite_TN, scores_TN, torch.where(scores_TN == torch.inf, high, low))
    size = torch.maximum(low.abs(), high.abs()).double()
    size = torch.where(size > 0, size, 1)
    return (scores_TN.double() / size).to(scores_TN.dtype), size


def _moved_surplus(scores_TN: Tensor, prices_N: Tensor) -> Tensor | None:
    """Return choices, with surplus tokens moved; None if the loss is too large."""
    num_tokens, num_experts = scores_TN.shape
    value_TN = scores_TN - prices_N
    best_T, expert_T = value_TN.max(1)
    share_N = num_tokens // num_experts + dual_prices.larger_shares(prices_N, num_tokens).long()
    total_loss = scores_TN.new_zeros(())
    for _ in range(ROUNDS):
        surplus_N = torch.bincount(expert_T, minlength=num_experts) - share_N
        if not surplus_N.any():
            return expert_T if total_loss <= ACCEPTED_LOSS * num_tokens else None
        tokens = (surplus_N > 0)[expert_T].nonzero().squeeze(1)
        room = (surplus_N < 0).nonzero().squeeze(1)
        value, choice = value_TN[tokens].index_select(1, room).max(1)
        loss, order = (best_T[tokens] - value).sort(stable=True)
        tokens, target = tokens[order], room[choice[order]]
        # Each expert releases its surplus, and takes tokens up to its share, both times the cheapest first.
        moves = (_rank(expert_T[tokens], num_experts) < surplus_N[expert_T[tokens]]).nonzero().squeeze(1)
        taken = _rank(target[moves], num_experts) < -surplus_N[target[moves]]
        moves = moves[taken]
        expert_T[tokens[moves]] = target[moves]
        total_loss += loss[moves].sum()
    return None


def _rank(group: Tensor, num_groups: int) -> Tensor:
    """Return each entry's rank in its group: the number of earlier entries."""
    order = group.argsort(stable=True)
    counts = torch.bincount(group, minlength=num_groups)
    first = counts.cumsum(0) - counts
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(group), device=group.device) - first[group[order]]
    return rank
