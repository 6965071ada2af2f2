"""Balanced assignment: which expert each token of a training batch goes to.

BASE layers ("Tricks for Training Sparse Translation Models", §2.1) maximise the sum of scores under the condition that
experts get equal shares. The dual problem has one price per expert only. So: find prices at which experts are about
equally in demand (`prices.py`), let every token choose, and move the few tokens that are too many along the cheapest
chains of exchanges between experts (`exchange.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_mtmoe.moe.exchange import even_out
from fairseq_mtmoe.moe.prices import market_prices

# What one step of a chain may lose, in units of the mean range (highest - lowest score) of a token. The loss of the
# whole assignment is far smaller, because few tokens move: see tests.
TOLERANCE = 2e-4
EXACT_TOLERANCE = 1e-9


@torch.no_grad()
def balanced_assignment(scores_TN: Tensor, *, exact: bool = False) -> Tensor:
    """The expert of each token, (T,), such that every expert gets ⌊T/N⌋ or ⌈T/N⌉ tokens and the scores' sum is highest.

    Args:
        scores_TN: how well token and expert fit, any floating type, N at least 1. Infinite scores count as the highest
            or lowest finite one, NaN as the lowest.
        exact: find the optimum but for rounding (the gap is at most 1e-6 of the sum over tokens of highest - lowest
            score); else the gap is at most 0.1% of that sum.

    The same scores give the same answer. The work is bounded: no step is repeated until something converges.
    """
    num_tokens, num_experts = scores_TN.shape
    if num_tokens == 0 or num_experts == 1:
        return torch.zeros(num_tokens, dtype=torch.long, device=scores_TN.device)
    scores_TN = _finite(scores_TN.double() if exact else scores_TN.float())
    spread = (scores_TN.amax(1) - scores_TN.amin(1)).mean().clamp(min=torch.finfo(torch.float32).tiny)
    prices_N = market_prices(scores_TN, spread)
    return even_out(scores_TN, prices_N, float(spread) * (EXACT_TOLERANCE if exact else TOLERANCE))


def _finite(scores_TN: Tensor) -> Tensor:
    """Finite scores of at most 1 in size, so that no difference of two overflows."""
    finite_TN = scores_TN.isfinite()
    zero = scores_TN.new_zeros(())
    low = torch.where(finite_TN, scores_TN, torch.inf).amin()
    high = torch.where(finite_TN, scores_TN, -torch.inf).amax()
    low, high = torch.where(low.isfinite(), low, zero), torch.where(high.isfinite(), high, zero)
    scores_TN = torch.where(finite_TN, scores_TN, torch.where(scores_TN == torch.inf, high, low))
    size = torch.maximum(low.abs(), high.abs())
    return scores_TN / torch.where(size > 0, size, torch.ones_like(size))
