"""Balanced assignment: which expert each token of a training batch goes to.

BASE layers ("Tricks for Training Sparse Translation Models", §2.1) maximise the sum of scores under the condition that
experts get equal shares. The dual of this problem has one price per expert only. So: find prices at which experts are
about equally in demand (`prices.py`), let every token choose, and move the few that are too many elsewhere, the
cheapest first. How much they lose at these prices bounds the distance to the optimum. Where that is too much, or
the optimum is wanted, they move along the cheapest chains of exchanges between experts instead (`exchange.py`).

That is the reference, and what runs where nothing faster does. On a CPU a compiled kernel goes to the optimum at once
(`kernels/`); on a GPU a fixed sequence of operations comes near it (`waitless.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_mtmoe.moe import kernels
from fairseq_mtmoe.moe.exchange import even_out
from fairseq_mtmoe.moe.form import form_for
from fairseq_mtmoe.moe.prices import COARSE, FINE, larger_shares, market_prices
from fairseq_mtmoe.moe.waitless import waitless_assignment

# All in units of the mean over tokens of highest - lowest score; promised is twice the accepted loss.
ACCEPTED_LOSS = 5e-4  # per token, of a fast assignment
TOLERANCE = 1e-4  # what a token may lose more than the cheapest one, so that many move along a chain together
EXACT_TOLERANCE = 1e-9
ROUNDS = 8  # of moving surplus tokens before chains are used
SAFE_SIZES = (1e-25, 1e25)  # sums of so many scores neither overflow nor vanish in float32


@torch.no_grad()
def balanced_assignment(scores_TN: Tensor, *, exact: bool = False) -> Tensor:
    """The expert of each token, (T,), for the highest sum of scores with ⌊T/N⌋ or ⌈T/N⌉ tokens for every expert.

    Args:
        scores_TN: how well token and expert fit, any floating type, N at least 1. Infinite scores count as the highest
            or lowest finite one, NaN as the lowest.
        exact: find the optimum but for rounding: the gap to it is at most 1e-6 of the sum over tokens of highest -
            lowest score. Otherwise it is at most 0.1% of that sum (on a GPU not for scores of very few different
            values, for which nothing is promised). With the compiled kernel the optimum costs nothing more.

    The same scores give the same answer. The work is bounded: nothing is repeated until it converges.
    """
    num_tokens, num_experts = scores_TN.shape
    if num_tokens == 0 or num_experts == 1:
        return torch.zeros(num_tokens, dtype=torch.long, device=scores_TN.device)
    if not exact and not form_for(scores_TN).has_values_at_hand:
        return waitless_assignment(scores_TN)
    expert_T = kernels.assign(scores_TN)
    return stepwise_assignment(scores_TN, exact=exact) if expert_T is None else expert_T


def stepwise_assignment(scores_TN: Tensor, *, exact: bool = False) -> Tensor:
    """The same in torch's operations, one step after the other; N at least 2 and T at least 1."""
    with torch.autocast(scores_TN.device.type, enabled=False):
        wide = exact or scores_TN.dtype == torch.float64
        scaled_TN = _scaled(scores_TN.double() if wide else scores_TN.float())
        prices_N = market_prices(scaled_TN.float(), COARSE)
        if not exact:
            expert_T = _moved_surplus(scaled_TN, prices_N)
            if expert_T is not None:
                return expert_T
        prices_N = market_prices(scaled_TN.float(), FINE, prices_N).to(scaled_TN.dtype)
        return even_out(scaled_TN, prices_N, EXACT_TOLERANCE if exact else TOLERANCE)


def _scaled(scores_TN: Tensor) -> Tensor:
    """Finite scores with a token's highest at 0 and, on average, its lowest at -1 (all 0 if scores are constant)."""
    low_T, high_T = scores_TN.amin(1), scores_TN.amax(1)
    size = torch.maximum(low_T.abs().amax(), high_T.abs().amax())
    if not SAFE_SIZES[0] < size < SAFE_SIZES[1]:  # NaN and infinity come here too
        scores_TN = _tamed(scores_TN)
        low_T, high_T = scores_TN.amin(1), scores_TN.amax(1)
    spread = (high_T - low_T).mean()
    smallest = torch.finfo(spread.dtype).tiny  # less has no finite reciprocal
    return (scores_TN - high_T.unsqueeze(1)).mul_(1 / torch.where(spread > smallest, spread, 1))


def _tamed(scores_TN: Tensor) -> Tensor:
    """Finite scores of at most 1 in size."""
    finite_TN = scores_TN.isfinite()
    low = torch.where(finite_TN, scores_TN, torch.inf).amin()
    high = torch.where(finite_TN, scores_TN, -torch.inf).amax()
    if low > high:  # nothing is finite
        low, high = torch.zeros_like(low), torch.zeros_like(high)
    scores_TN = torch.where(finite_TN, scores_TN, torch.where(scores_TN == torch.inf, high, low))
    size = torch.maximum(low.abs(), high.abs()).double()
    return (scores_TN.double() / torch.where(size > 0, size, 1)).to(scores_TN.dtype)


def _moved_surplus(scores_TN: Tensor, prices_N: Tensor) -> Tensor | None:
    """Every token's choice at these prices, but for surplus tokens, which go where they lose least and there is room.

    Returns None if they lose too much, or are too many for a few rounds.
    """
    num_tokens, num_experts = scores_TN.shape
    value_TN = scores_TN - prices_N
    best_T, expert_T = value_TN.max(1)
    share_N = num_tokens // num_experts + larger_shares(prices_N, num_tokens).long()
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
        # Each expert lets go of its surplus, and takes what it has room for; in both cases the cheapest first.
        moves = (_rank(expert_T[tokens], num_experts) < surplus_N[expert_T[tokens]]).nonzero().squeeze(1)
        taken = _rank(target[moves], num_experts) < -surplus_N[target[moves]]
        moves = moves[taken]
        expert_T[tokens[moves]] = target[moves]
        total_loss += loss[moves].sum()
    return None


def _rank(group: Tensor, num_groups: int) -> Tensor:
    """How many earlier entries belong to the same group as each entry."""
    order = group.argsort(stable=True)
    counts = torch.bincount(group, minlength=num_groups)
    first = counts.cumsum(0) - counts
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(group), device=group.device) - first[group[order]]
    return rank
