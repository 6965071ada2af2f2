"""Random scores to assign by, and how far from the optimum an assignment is: needs torch alone."""

from __future__ import annotations

import torch
from torch import Tensor


def random_scores(kind: str, num_tokens: int, num_experts: int) -> Tensor:
    """Isotropic: normal. Skewed: all tokens prefer the same few experts, by more than what tells them apart."""
    scores_TN = torch.randn(num_tokens, num_experts)
    if kind == "skewed":
        scores_TN -= 2 * torch.arange(1, num_experts + 1).log()
    return scores_TN


def upper_bound(scores_TN: Tensor, price_N: Tensor) -> float:
    """Return what no fair assignment exceeds, whatever the prices are (duality); at the best ones, the optimum."""
    wide_TN, wide_N = scores_TN.double(), price_N.double()
    share, larger = divmod(*scores_TN.shape)
    dearest = wide_N.sort(descending=True).values[:larger]  # these have a token more
    return float((wide_TN - wide_N).amax(1).sum() + share * wide_N.sum() + dearest.sum())


def gap(expert_T: Tensor, optimum: float, scores_TN: Tensor) -> float:
    """Return how much lower the sum of scores is, over the sum over tokens of highest - lowest score.

    Raises:
        AssertionError: the shares are not equal.
    """
    num_tokens, num_experts = scores_TN.shape
    load_N = torch.bincount(expert_T, minlength=num_experts)
    assert len(load_N) == num_experts and int(load_N.max() - load_N.min()) <= (num_tokens % num_experts > 0)
    wide_TN = scores_TN.double()
    total = float(wide_TN.gather(1, expert_T.unsqueeze(1)).sum())
    return (optimum - total) / float((wide_TN.amax(1) - wide_TN.amin(1)).sum())
