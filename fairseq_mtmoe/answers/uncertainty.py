"""How uncertain a model is of its answers: entropies (CA-MTL, equations 4 and 5), and what stands for one elsewhere."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.special import entr, ndtr

DROPOUT_DRAWS = 2  # outputs under dropout that a spread is taken of: each costs a pass over a task's candidates


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


def halves_of(draws: Tensor, labels: Tensor) -> Uncertainty:
    """How undecided a model is in which half of E examples, by their numbers, each one is: (E, K) draws, (E,) labels.

    An example's number is taken to be normally distributed around the mean of its draws m_i, with a variance of
    s² + σ_i²: s² is the mean squared error of all E, σ_i² the variance of the example's draws. So it is above the mean
    of all m_i with a probability of `Φ((m_i - m) / √(s² + σ_i²))`, and the entropy is that of a choice of two, which
    classifications can be compared with, whatever the unit: a model that has learned nothing is undecided of all
    examples, and one that has learned is of those in the middle and of those that dropout changes.
    """
    draws, labels = draws.double(), labels.double()  # of values that differ little
    said_E = draws.mean(1)
    noise_E = ((said_E - labels).square().mean() + draws.var(1)).sqrt().clamp(min=torch.finfo(draws.dtype).tiny)
    above_E = ndtr((said_E - said_E.mean()) / noise_E)
    entropy_E = (entr(above_E) + entr(1 - above_E)).float()
    return Uncertainty(entropy_E, entropy_E.new_full((len(entropy_E),), math.log(2)))
