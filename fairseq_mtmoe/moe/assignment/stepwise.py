"""Balanced assignment: which expert each token of a training batch goes to.

BASE layers ("Tricks for Training Sparse Translation Models", §2.1) maximise the sum of scores under the condition that
experts get equal shares. The dual of this problem has one price per expert only. So: find prices at which experts are
about equally in demand (`dual_prices.py`), let every token choose, and move the few that are too many elsewhere, the
cheapest first. How much they lose at these prices bounds the distance to the optimum. Where that is too much, or
the optimum is wanted, they move along the cheapest chains of exchanges between experts instead (`augmenting_paths.py`).

That is the reference, and what runs where nothing faster does. On a CPU a compiled kernel goes to the optimum at once
(`kernels/`); on a GPU a fixed sequence of operations comes near it (`gpu_form.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_mtmoe.moe.assignment import kernels
from fairseq_mtmoe.moe.assignment.augmenting_paths import even_out
from fairseq_mtmoe.moe.assignment.dual_prices import (
    COARSE,
    FINE,
    in_units_of,
    larger_shares,
    market_prices,
    resumed_prices,
)
from fairseq_mtmoe.moe.assignment.dual_prices import Assignment as Assignment
from fairseq_mtmoe.moe.assignment.gpu_form import waitless_assignment
from fairseq_mtmoe.moe.form import form_for

# All in units of the mean over tokens of highest - lowest score; promised is twice the accepted loss.
ACCEPTED_LOSS = 5e-4  # per token, of a fast assignment
TOLERANCE = 1e-4  # what a token may lose more than the cheapest one, so that many move along a chain together
EXACT_TOLERANCE = 1e-9
ROUNDS = 8  # of moving surplus tokens before chains are used
SAFE_SIZES = (1e-25, 1e25)  # sums of so many scores neither overflow nor vanish in float32


@torch.no_grad()
def priced_assignment(scores_TN: Tensor, start_N: Tensor | None = None, *, exact: bool = False) -> Assignment:
    """⌊T/N⌋ or ⌈T/N⌉ tokens for every expert with the highest sum of scores, and the experts' prices.

    Args:
        scores_TN: how well token and expert fit, any floating type, N at least 1. Infinite scores count as the highest
            or lowest finite one, NaN as the lowest.
        start_N: prices of an earlier step, (N,), float32, in units of the scores: the nearer they are to this step's,
            the less there is to do on a CPU, where bad ones cost time only. A GPU does the same whatever they are: from
            those off by more than about the mean over tokens of highest - lowest score, the gap may be larger.
        exact: find the optimum but for rounding: the gap to it is at most 1e-6 of the sum over tokens of highest -
            lowest score, and every token prefers its own expert at these prices, unless it has to be torn between two.
            Otherwise the gap is at most 0.1% of that sum (on a GPU not for scores of very few different values, for
            which nothing is promised). With the compiled kernel the optimum costs nothing more.

    The same scores and the same start give the same answer. The work is bounded: nothing is repeated until it
    converges. Prices are 0 without tokens and for one expert; elsewhere they are finite, and differ by no more than the
    finite scores do, about.
    """
    num_tokens, num_experts = scores_TN.shape
    if num_tokens == 0 or num_experts == 1:
        nobody_T = torch.zeros(num_tokens, dtype=torch.long, device=scores_TN.device)
        return Assignment(nobody_T, torch.zeros(num_experts, device=scores_TN.device))
    if not exact and not form_for(scores_TN).has_values_at_hand:
        return waitless_assignment(scores_TN, start_N=start_N)
    compiled = kernels.assign(scores_TN, start_N=start_N)
    return stepwise_assignment(scores_TN, start_N, exact=exact) if compiled is None else compiled


def balanced_assignment(scores_TN: Tensor, *, exact: bool = False) -> Tensor:
    """The expert of each token, (T,): what `priced_assignment` finds without a start, less the prices."""
    return priced_assignment(scores_TN, exact=exact).expert_T


@torch.no_grad()
def stepwise_assignment(scores_TN: Tensor, start_N: Tensor | None = None, *, exact: bool = False) -> Assignment:
    """The same in torch's operations, one step after the other; N at least 2 and T at least 1."""
    with torch.autocast(scores_TN.device.type, enabled=False):
        wide = exact or scores_TN.dtype == torch.float64
        scaled_TN, size = _scaled(scores_TN.double() if wide else scores_TN.float())
        prices_N = resumed_prices(scaled_TN.float(), None if start_N is None else _start(start_N, size))
        if prices_N is None:
            prices_N = market_prices(scaled_TN.float(), COARSE)
        if not exact:
            expert_T = _moved_surplus(scaled_TN, prices_N)
            if expert_T is not None:
                return Assignment(expert_T, in_units_of(size, prices_N))
        prices_N = market_prices(scaled_TN.float(), FINE, prices_N).to(scaled_TN.dtype)
        expert_T, prices_N = even_out(scaled_TN, prices_N, EXACT_TOLERANCE if exact else TOLERANCE)
        return Assignment(expert_T, in_units_of(size, prices_N))


def _start(start_N: Tensor, size: Tensor) -> Tensor:
    """Prices of an earlier step in the units of scaled scores, 0 on average."""
    wide_N = start_N.double()
    return ((wide_N - wide_N.mean()) / size).float()


def _scaled(scores_TN: Tensor) -> tuple[Tensor, Tensor]:
    """Finite scores with a token's highest at 0 and, on average, its lowest at -1, and what 1 is in their own units.

    Constant scores become 0.
    """
    low_T, high_T = scores_TN.amin(1), scores_TN.amax(1)
    size = torch.maximum(low_T.abs().amax(), high_T.abs().amax())
    if SAFE_SIZES[0] < size < SAFE_SIZES[1]:
        size = torch.ones_like(size)
    else:  # NaN and infinity come here too
        scores_TN, size = _tamed(scores_TN)
        low_T, high_T = scores_TN.amin(1), scores_TN.amax(1)
    spread = (high_T - low_T).mean()
    smallest = torch.finfo(spread.dtype).tiny  # less has no finite reciprocal
    spread = torch.where(spread > smallest, spread, 1)
    return (scores_TN - high_T.unsqueeze(1)).mul_(1 / spread), spread.double() * size


def _tamed(scores_TN: Tensor) -> tuple[Tensor, Tensor]:
    """Finite scores of at most 1 in size, and what 1 was."""
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
