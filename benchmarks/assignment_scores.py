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


def gap(expert_T: Tensor, optimal_T: Tensor, scores_TN: Tensor) -> float:
    """How much lower the sum of scores is than the optimum, over the sum over tokens of highest - lowest score.

    Raises:
        AssertionError: the shares are not equal.
    """
    num_tokens, num_experts = scores_TN.shape
    load_N = torch.bincount(expert_T, minlength=num_experts)
    assert len(load_N) == num_experts and int(load_N.max() - load_N.min()) <= (num_tokens % num_experts > 0)
    wide_TN = scores_TN.double()
    lost_T = wide_TN.gather(1, optimal_T.unsqueeze(1)) - wide_TN.gather(1, expert_T.unsqueeze(1))
    return float(lost_T.sum() / (wide_TN.amax(1) - wide_TN.amin(1)).sum())
