"""An assignment's result, and Newton's method for its dual prices.

A token that pays p_e for expert e chooses the highest `score - price`. At the optimal prices all experts have equal
demand. With an entropy term (as in Sinkhorn's optimal transport), choices become softmaxes at a temperature, demand is
smooth, and Newton's method needs a few steps. Then the temperature falls. Scores are scaled so that a token's highest
and lowest score differ by 1 on average.
"""

from typing import NamedTuple

import torch
from torch import Tensor

LONGEST_STEP = 4.0  # in temperatures: longer steps are cut, since the smooth demand is only a local model
RIDGE = 1e-3  # of a share, on the diagonal of Newton's system: solvable where no token wavers between two experts
GOLDEN = 0.6180339887498949  # its multiples are spread evenly over [0, 1), without the period of any sentence length


class Assignment(NamedTuple):
    """Each token's expert, (T,), long, and the experts' prices, (N,), float32, of mean 0."""

    expert_T: Tensor
    price_N: Tensor


def sample_indices(size: int, num_tokens: int, device: torch.device) -> Tensor:
    """Return `size` of the tokens 0 … T-1, spread evenly without a period, (size,), long."""
    return torch.arange(size, dtype=torch.float64, device=device).mul_(GOLDEN).frac_().mul_(num_tokens).long()


def in_units_of(size: Tensor, prices_N: Tensor) -> Tensor:
    """Return prices minus their mean, times `size`, (N,), float32, always finite."""
    wide_N = prices_N.double()
    limit = torch.finfo(torch.float32).max
    return ((wide_N - wide_N.mean()) * size.double()).clamp(-limit, limit).float()


def newton_step(scores_TN: Tensor, prices_N: Tensor, temperature: float, real_T: Tensor) -> Tensor:
    """Return Newton's step of prices, (N,), in temperatures; `real_T`: 0 at padding."""
    num_experts = scores_TN.shape[1]
    demand_TN = ((scores_TN - prices_N) / temperature).softmax(1) * real_T.unsqueeze(1)
    share = real_T.sum().clamp(min=1) / num_experts
    demand_N = demand_TN.sum(0)
    # Prices are defined only up to a constant: without the last term the system would be singular.
    ridge_NN = torch.eye(num_experts, dtype=scores_TN.dtype, device=scores_TN.device) * (share * RIDGE)
    slope_NN = demand_N.diag() - demand_TN.t() @ demand_TN + ridge_NN + share / num_experts
    # No check for errors, which would synchronise a GPU; with the ridge there are none.
    step_N: Tensor = torch.linalg.solve_ex(slope_NN, demand_N - share).result
    return step_N.clamp_(-LONGEST_STEP, LONGEST_STEP)
