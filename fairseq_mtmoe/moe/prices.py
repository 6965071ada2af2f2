"""Prices at which every expert is in equal demand: the dual of balanced assignment, smoothed.

A token that pays a price p_e for expert e chooses the highest `score - price`. Softened by a temperature, demand
becomes smooth, and Newton's method finds the N prices in a few steps; the temperature then falls.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 5
STEPS = 2  # of Newton's method, at each level
FIRST_TEMPERATURE = 0.25  # of the mean range of a token's scores
COOLING = 0.25
LONGEST_STEP = 4.0  # in temperatures: further away, the smooth demand says nothing
RIDGE = 1e-3  # in tokens per expert: keeps the system solvable where nobody wavers between two experts


def market_prices(scores_TN: Tensor, spread: Tensor) -> Tensor:
    """Prices, (N,), at which about T/N tokens prefer each expert. `spread` is the mean range of a token's scores."""
    num_tokens, num_experts = scores_TN.shape
    share = num_tokens / num_experts
    prices_N = scores_TN.mean(0)
    ridge_NN = share * (RIDGE * torch.eye(num_experts).to(scores_TN) + 1 / num_experts)
    temperature = spread * FIRST_TEMPERATURE
    for _ in range(LEVELS):
        for _ in range(STEPS):
            demand_TN = ((scores_TN - prices_N) / temperature).softmax(1)
            demand_N = demand_TN.sum(0)
            slope_NN = demand_N.diag() - demand_TN.t() @ demand_TN + ridge_NN
            step_N = torch.linalg.solve(slope_NN, demand_N - share)
            prices_N = prices_N + temperature * step_N.clamp(-LONGEST_STEP, LONGEST_STEP)
        temperature = temperature * COOLING
    return prices_N
