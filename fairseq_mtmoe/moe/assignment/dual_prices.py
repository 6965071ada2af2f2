"""Prices at which every expert is in equal demand: the dual of balanced assignment, smoothed.

A token that pays a price p_e for expert e chooses the highest `score - price`. Softened by a temperature, demand
becomes smooth, and Newton's method finds the N prices in a few steps; then the temperature falls. Scores come in such
a scale that a token's highest and lowest differ by 1 on average. While the temperature is high, a sample of the tokens
says enough.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

COARSE = (0.25, 0.0625, 0.0156)  # temperatures: a few percent of the tokens are left over
FINE = (0.0039, 0.00098, 0.00024)  # a few tokens are
MOST_STEPS = 4  # of Newton's method at one temperature
NEAR = 0.3  # temperatures: after a step shorter than this, the temperature may fall
LONGEST_STEP = 4.0  # temperatures: further away, the smooth demand says nothing
RIDGE = 1e-3  # in tokens per expert: keeps the system solvable where nobody wavers between two experts
FARTHEST = 1e3  # prices of an earlier step that are further apart are none to begin with
MOST_UNEVEN = 2.0  # demand over share, or share over demand, at prices that may be gone on from
SAMPLE = 32  # tokens per expert
SMALLEST_SAMPLE = 256
GOLDEN = 0.6180339887498949  # its multiples spread over [0, 1) evenly, and in step with no length of sentences


class Assignment(NamedTuple):
    """Which expert each token goes to, and what the experts cost.

    Attributes:
        expert_T: each token's expert, (T,), long.
        price_N: each expert's price, (N,), float32, 0 on average, in units of the scores: a token prefers the expert
            with the highest score - price.
    """

    expert_T: Tensor
    price_N: Tensor


def market_prices(scores_TN: Tensor, temperatures: tuple[float, ...], prices_N: Tensor | None = None) -> Tensor:
    """Prices, (N,), at which about T/N tokens prefer each expert, from these or from the mean scores."""
    num_tokens, num_experts = scores_TN.shape
    size = max(SAMPLE * num_experts, SMALLEST_SAMPLE)
    if prices_N is not None or 2 * size > num_tokens:
        start_N = scores_TN.mean(0) if prices_N is None else prices_N
        return _cooled(scores_TN, start_N, temperatures)
    sample_TN = scores_TN[sample_places(size, num_tokens, scores_TN.device)]
    prices_N = _cooled(sample_TN, sample_TN.mean(0), temperatures[:-1])
    return _cooled(scores_TN, prices_N, temperatures[-2:])


def sample_places(size: int, num_tokens: int, device: torch.device) -> Tensor:
    """`size` of the tokens 0 … T-1, spread evenly and in step with nothing, (size,), long."""
    return torch.arange(size, dtype=torch.float64, device=device).mul_(GOLDEN).frac_().mul_(num_tokens).long()


def in_units_of(size: Tensor, prices_N: Tensor) -> Tensor:
    """Prices less their mean, times `size`, (N,), float32: finite, whatever the size is."""
    wide_N = prices_N.double()
    limit = torch.finfo(torch.float32).max
    return ((wide_N - wide_N.mean()) * size.double()).clamp(-limit, limit).float()


def resumed_prices(scores_TN: Tensor, start_N: Tensor | None) -> Tensor | None:
    """Prices, (N,), from those of an earlier step; None where they are too far from what these scores need."""
    if start_N is None or not (start_N.abs() < FARTHEST).all():  # NaN neither
        return None
    prices_N = _cooled(scores_TN, start_N, COARSE[-1:])
    share = len(scores_TN) / len(start_N)
    demand_N = torch.bincount((scores_TN - prices_N).argmax(1), minlength=len(start_N))
    even = (demand_N >= share / MOST_UNEVEN).all() and (demand_N <= share * MOST_UNEVEN).all()
    return prices_N if even else None


def larger_shares(prices_N: Tensor, num_tokens: int) -> Tensor:
    """Which experts get ⌈T/N⌉ tokens where others get ⌊T/N⌋: the dearest, (N,), bool."""
    number = num_tokens % len(prices_N)
    larger_N = torch.zeros(len(prices_N), dtype=torch.bool, device=prices_N.device)
    larger_N[prices_N.argsort(descending=True, stable=True)[:number]] = True
    return larger_N


def _cooled(scores_TN: Tensor, prices_N: Tensor, temperatures: tuple[float, ...]) -> Tensor:
    for temperature in temperatures:
        for _ in range(MOST_STEPS):
            step_N = newton_step(scores_TN, prices_N, temperature)
            prices_N = prices_N + temperature * step_N
            if step_N.abs().max() < NEAR:
                break
    return prices_N


def newton_step(scores_TN: Tensor, prices_N: Tensor, temperature: float, real_T: Tensor | None = None) -> Tensor:
    """How far to move the prices, (N,), in temperatures. `real_T` is 0 at tokens that do not count, else 1."""
    num_tokens, num_experts = scores_TN.shape
    demand_TN = _demand(scores_TN, prices_N, temperature)
    if real_T is not None:
        demand_TN = demand_TN * real_T.unsqueeze(1)
    share = (num_tokens if real_T is None else real_T.sum().clamp(min=1)) / num_experts
    demand_N = demand_TN.sum(0)
    # Prices are defined up to a constant only: without the second term the system would be singular.
    ridge_NN = torch.eye(num_experts, dtype=scores_TN.dtype, device=scores_TN.device) * (share * RIDGE)
    slope_NN = demand_N.diag() - demand_TN.t() @ demand_TN + ridge_NN + share / num_experts
    # Without a check for errors, which would wait for a GPU; the ridge leaves no reason for one.
    step_N: Tensor = torch.linalg.solve_ex(slope_NN, demand_N - share).result
    return step_N.clamp_(-LONGEST_STEP, LONGEST_STEP)


def _demand(scores_TN: Tensor, prices_N: Tensor, temperature: float) -> Tensor:
    """The softmax over experts of `(score - price) / temperature`."""
    demand_TN = (scores_TN - prices_N).mul_(1 / temperature)
    # Smaller values change nothing, but their squares would be denormal numbers, on which a CPU is ten times slower.
    demand_TN = demand_TN.sub_(demand_TN.amax(1, keepdim=True)).clamp_(min=-40).exp_()
    return demand_TN.div_(demand_TN.sum(1, keepdim=True))
