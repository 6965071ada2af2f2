"""Dual prices of balanced assignment: Newton's method on the smoothed dual, at falling temperatures.

A token that pays p_e for expert e chooses the highest `score - price`. At the optimal prices all experts have equal
demand. With an entropy term (as in Sinkhorn's optimal transport), choices become softmaxes at a temperature, demand is
smooth, and Newton's method needs a few steps. Then the temperature falls. Scores are scaled so that a token's highest
and lowest score differ by 1 on average. At high temperatures a sample of the tokens is enough.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# Temperatures, in units of the mean over tokens of highest - lowest score. At the last coarse one a few percent of the
# tokens are surplus at their expert, at the last fine one a few tokens.
COARSE = (0.25, 0.0625, 0.0156)
FINE = (0.0039, 0.00098, 0.00024)
MOST_STEPS = 4  # of Newton's method at one temperature
NEAR = 0.3  # in temperatures: once no price moves by more than this in a step, the temperature falls
LONGEST_STEP = 4.0  # in temperatures: longer steps are cut, since the smooth demand is only a local model
RIDGE = 1e-3  # of a share, on the diagonal of Newton's system: solvable where no token wavers between two experts
FARTHEST = 1e3  # in units of the scores' scale: larger prices of an earlier step are not used as a start
MOST_UNEVEN = 2.0  # demand over share, or share over demand: above it, an earlier step's prices are dropped
SAMPLE = 32  # tokens per expert in the sample
SMALLEST_SAMPLE = 256  # minimum number of tokens in the sample
GOLDEN = 0.6180339887498949  # its multiples are spread evenly over [0, 1), without the period of any sentence length


class Assignment(NamedTuple):
    """Each token's expert, (T,), long, and the experts' prices, (N,), float32, of mean 0."""

    expert_T: Tensor
    price_N: Tensor


def solve_dual(scores_TN: Tensor, temperatures: tuple[float, ...], prices_N: Tensor | None = None) -> Tensor:
    """Return prices, (N,), at which about T/N tokens prefer each expert.

    prices_N: where to start; by default the mean scores.
    """
    num_tokens, num_experts = scores_TN.shape
    size = max(SAMPLE * num_experts, SMALLEST_SAMPLE)
    if prices_N is not None or 2 * size > num_tokens:
        start_N = scores_TN.mean(0) if prices_N is None else prices_N
        return _cooled(scores_TN, start_N, temperatures)
    sample_TN = scores_TN[sample_indices(size, num_tokens, scores_TN.device)]
    prices_N = _cooled(sample_TN, sample_TN.mean(0), temperatures[:-1])
    return _cooled(scores_TN, prices_N, temperatures[-2:])


def sample_indices(size: int, num_tokens: int, device: torch.device) -> Tensor:
    """Return `size` of the tokens 0 … T-1, spread evenly without a period, (size,), long."""
    return torch.arange(size, dtype=torch.float64, device=device).mul_(GOLDEN).frac_().mul_(num_tokens).long()


def in_units_of(size: Tensor, prices_N: Tensor) -> Tensor:
    """Return prices minus their mean, times `size`, (N,), float32, always finite."""
    wide_N = prices_N.double()
    limit = torch.finfo(torch.float32).max
    return ((wide_N - wide_N.mean()) * size.double()).clamp(-limit, limit).float()


def resumed_prices(scores_TN: Tensor, start_N: Tensor | None) -> Tensor | None:
    """Return prices, (N,), from those of an earlier step; None if these are too far off."""
    if start_N is None or not (start_N.abs() < FARTHEST).all():  # False for NaN, too
        return None
    prices_N = _cooled(scores_TN, start_N, COARSE[-1:])
    share = len(scores_TN) / len(start_N)
    demand_N = torch.bincount((scores_TN - prices_N).argmax(1), minlength=len(start_N))
    even = (demand_N >= share / MOST_UNEVEN).all() and (demand_N <= share * MOST_UNEVEN).all()
    return prices_N if even else None


def larger_shares(prices_N: Tensor, num_tokens: int) -> Tensor:
    """Return which experts get ⌈T/N⌉ tokens, not ⌊T/N⌋: the dearest, (N,), bool."""
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
    """Return Newton's step of prices, (N,), in temperatures; `real_T`: 0 at padding."""
    num_tokens, num_experts = scores_TN.shape
    demand_TN = _demand(scores_TN, prices_N, temperature)
    if real_T is not None:
        demand_TN = demand_TN * real_T.unsqueeze(1)
    share = (num_tokens if real_T is None else real_T.sum().clamp(min=1)) / num_experts
    demand_N = demand_TN.sum(0)
    # Prices are defined only up to a constant: without the last term the system would be singular.
    ridge_NN = torch.eye(num_experts, dtype=scores_TN.dtype, device=scores_TN.device) * (share * RIDGE)
    slope_NN = demand_N.diag() - demand_TN.t() @ demand_TN + ridge_NN + share / num_experts
    # No check for errors, which would synchronise a GPU; with the ridge there are none.
    step_N: Tensor = torch.linalg.solve_ex(slope_NN, demand_N - share).result
    return step_N.clamp_(-LONGEST_STEP, LONGEST_STEP)


def _demand(scores_TN: Tensor, prices_N: Tensor, temperature: float) -> Tensor:
    """Return the softmax over experts of `(score - price) / temperature`."""
    demand_TN = (scores_TN - prices_N).mul_(1 / temperature)
    # Smaller values change nothing, but a CPU is ten times slower on their squares, which are denormal numbers.
    demand_TN = demand_TN.sub_(demand_TN.amax(1, keepdim=True)).clamp_(min=-40).exp_()
    return demand_TN.div_(demand_TN.sum(1, keepdim=True))
