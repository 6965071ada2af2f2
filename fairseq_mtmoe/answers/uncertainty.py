"""How uncertain a model is of its answers: entropies (CA-MTL, equations 4 and 5), and what stands for one elsewhere."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor
from torch.special import entr

DROPOUT_DRAWS = 2  # outputs under dropout that a spread is taken of: each costs a pass over a task's candidates
LEAST_BETWEEN = 0.01  # least variance between examples, in shares of that of their draws


class Uncertainty(NamedTuple):
    """Of E examples.

    Attributes:
        entropy: H_i, (E,), float32, at least 0.
        most: H', what it would be if the model were undecided, (E,): the most that it can be.
    """

    entropy: Tensor
    most: Tensor


def entropy_of(logits: Tensor) -> Uncertainty:
    """Of the choices in the last dimension, in nats: (…, C) to (…); where a logit is -inf, there is no such choice."""
    logits = logits.float()
    entropy = entr(logits.softmax(-1)).sum(-1)
    return Uncertainty(entropy, logits.isneginf().logical_not().sum(-1).log())


def spread_of(draws: Tensor) -> Uncertainty:
    """How much of the spread of E predictions (E, K) is that of K draws of each: from 0 to 1, as `σ_i / √(σ_i² + τ²)`.

    σ_i is the standard deviation of an example's draws, τ that of what the examples' draws are around: a model that
    tells examples apart by more than dropout does is certain of them, in whatever unit. τ² is estimated as in an
    analysis of variance: means of K draws vary by σ²/K more than what they estimate. It is at least a hundredth of σ²:
    else all would be exactly 1 where the means vary by less, and leave no place to other tasks' undecided examples.
    One example alone is compared with 1.
    """
    draws = draws.double()  # of values that differ little
    within_E = draws.var(1)
    between = draws.new_ones(())
    if len(draws) > 1:
        within = within_E.mean()
        between = (draws.mean(1).var() - within / draws.shape[1]).clamp(min=LEAST_BETWEEN * within)
    total_E = within_E + between
    share_E = (within_E / total_E.where(total_E > 0, 1)).sqrt().float()
    return Uncertainty(share_E, share_E.new_ones(len(share_E)))
