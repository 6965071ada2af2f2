"""Balanced assignment in torch, without host synchronisation.

This is a fixed sequence of operations. It computes prices and each token's choice. In a fixed
number of rounds, surplus tokens move to the experts where they lose least. At the end, experts
with room take the remaining surplus tokens in order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.moe.stats import real_tokens

# One step at each of these temperatures. The first is high, and steps may be long, because the
# tokens of an earlier step may have been of other languages.
WARMEST = 0.25
COLDEST = 0.002
STEPS = 6
TEMPERATURES = tuple(WARMEST * (COLDEST / WARMEST) ** (step / (STEPS - 1)) for step in range(STEPS))
# In temperatures: longer steps are shortened, because the smooth demand is only a local model.
LONGEST_STEP = 4.0
ROUNDS = 3  # of moving surplus tokens
RIDGE = 0.01  # of an expert's demand
LEVEL = 100.0  # in ridges: keeps the mean of the prices
SHUNNED = 1e-3  # of a share: lower demand counts as this much
FARTHEST = 1e3  # in units of the scores' scale: limit of the prices of an earlier step


class Assignment(NamedTuple):
    """Each token's expert, (T,), long, and the experts' prices, (N,), float32.

    Prices have mean 0.
    """

    expert_T: Tensor
    price_N: Tensor


@torch.no_grad()
def torch_assignment(
    scores_TN: Tensor, padding_T: Tensor | None = None, start_N: Tensor | None = None
) -> Assignment:
    """Compute `priced_assignment` without a bound on the gap.

    N is at least 2, T at least 1. `padding_T` is True at padding, whose expert is N. `start_N`
    are prices of an earlier step, of mean 0.
    """
    num_tokens, num_experts = scores_TN.shape
    assert num_tokens >= 1 and num_experts >= 2
    real_T = real_tokens(scores_TN, padding_T)
    number = real_T.sum()
    count = number.clamp(min=1)
    with torch.autocast(scores_TN.device.type, enabled=False):
        scaled_TN, size = _scaled(scores_TN.float(), real_T, count)
        start_N = (
            torch.zeros(num_experts, device=scores_TN.device) if start_N is None else start_N / size
        )
        prices_N = _prices(scaled_TN, None if padding_T is None else real_T, count, start_N)
    value_TN = scaled_TN - prices_N
    best_T, expert_T = value_TN.max(1)
    if padding_T is not None:
        expert_T = expert_T.masked_fill(padding_T, num_experts)
    shares = Shares.of(prices_N, number.long(), num_tokens)
    for _ in range(ROUNDS):
        expert_T = _moved(value_TN, best_T, expert_T, shares)
    return Assignment(_filled(expert_T, shares), _in_units_of(size, prices_N))


def _scaled(scores_TN: Tensor, real_T: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return scaled scores, from 0 down to -1 on average per token, and the scale."""
    odd_TN = ~(scores_TN.abs() < torch.inf)  # NaN too
    low = scores_TN.masked_fill(odd_TN, torch.inf).amin()
    high = scores_TN.masked_fill(odd_TN, -torch.inf).amax()
    size = torch.maximum(low.abs(), high.abs())
    size = torch.where((size > 0) & (size < torch.inf), size, 1)
    # If no score is finite, `low` is +inf, and all scores count as equal.
    instead_TN = torch.where(scores_TN == torch.inf, high, low).nan_to_num(0, 0, 0)
    scores_TN = torch.where(odd_TN, instead_TN, scores_TN) / size
    below_TN = scores_TN - scores_TN.amax(1, keepdim=True)
    spread = (below_TN.amin(1) @ real_T) / count
    spread = torch.where(spread < -torch.finfo(spread.dtype).tiny, -spread, 1)
    return below_TN / spread, spread.double() * size


def _prices(scores_TN: Tensor, real_T: Tensor | None, count: Tensor, start_N: Tensor) -> Tensor:
    """Return prices from those of an earlier step, or 0, in few operations.

    With an entropy term (as in Sinkhorn's optimal transport), a token's choice is a softmax at a
    temperature, and demand is smooth. Newton's method takes one step at each of the falling
    temperatures. Demand falls nearly exponentially as a price rises. Therefore a step equalises
    its logarithm, which converges from far away. With D the demand, (T, N), and d its sums, in
    shares, the step x solves (diag(d) - DᵀD) x = d log d, divided by d.
    """
    num_tokens, num_experts = scores_TN.shape
    prices_1N = start_N.nan_to_num(0, 0, 0).unsqueeze(0)
    prices_1N = (prices_1N - prices_1N.mean()).clamp(-FARTHEST, FARTHEST).float()
    # Prices are defined only up to a constant: without the second term the system would be
    # singular.
    ridge_NN = (
        torch.eye(num_experts, device=scores_TN.device) * (1 + RIDGE) + RIDGE * LEVEL / num_experts
    )
    weight_T1 = None if real_T is None else (real_T * (num_experts / count)).unsqueeze(1)
    for temperature in TEMPERATURES:
        demand_TN = (scores_TN - prices_1N).div_(temperature).softmax(1)
        if weight_T1 is None:
            both_NN = torch.addmm(
                ridge_NN, demand_TN.t(), demand_TN, beta=0, alpha=num_experts / num_tokens
            )
        else:
            both_NN = demand_TN.t() @ (demand_TN * weight_T1)
        demand_1N = both_NN.sum(0, keepdim=True).clamp_(min=SHUNNED)
        slope_NN = ridge_NN.addcdiv(both_NN, demand_1N, value=-1)
        # No check for errors, which would synchronise a GPU; with the ridge there are none.
        step_1N = torch.linalg.solve_ex(slope_NN, demand_1N.log(), left=False).result
        prices_1N = prices_1N.add(step_1N.clamp_(-LONGEST_STEP, LONGEST_STEP), alpha=temperature)
    return prices_1N.squeeze(0)


def _in_units_of(size: Tensor, prices_N: Tensor) -> Tensor:
    """Return prices minus their mean, times `size`, (N,), float32, always finite."""
    wide_N = prices_N.double()
    limit = torch.finfo(torch.float32).max
    return ((wide_N - wide_N.mean()) * size.double()).clamp(-limit, limit).float()


class Shares(NamedTuple):
    """The experts' shares, (N + 1,), with padding as expert N; and index tensors."""

    share_M: Tensor
    empty_M: Tensor
    expert_M: Tensor
    token_T: Tensor
    one_T: Tensor

    @staticmethod
    def of(prices_N: Tensor, number: Tensor, num_tokens: int) -> Shares:
        """Return the shares of `number` tokens; the dearest experts get the remainder."""
        num_experts = len(prices_N)
        rank_N = prices_N.argsort(descending=True, stable=True).argsort()
        share_N = number // num_experts + (rank_N < number % num_experts)
        token_T = torch.arange(num_tokens, device=prices_N.device)
        expert_M = torch.arange(num_experts + 1, device=prices_N.device)
        share_M = F.pad(share_N, (0, 1), value=num_tokens)
        return Shares(share_M, -share_M, expert_M, token_T, torch.ones_like(token_T))

    def surplus(self, expert_T: Tensor) -> Tensor:
        """Return the experts' numbers of tokens above their share, (N + 1,)."""
        return self.empty_M.scatter_add(0, expert_T, self.one_T)

    def ranks(self, group_T: Tensor) -> Tensor:
        """Return each entry's rank in its group (0 to N): the number of earlier entries."""
        ordered, order = group_T.sort(stable=True)
        first_M = torch.searchsorted(ordered, self.expert_M)
        return torch.empty_like(order).scatter_(0, order, self.token_T - first_M[ordered])


def _moved(value_TN: Tensor, best_T: Tensor, expert_T: Tensor, shares: Shares) -> Tensor:
    """Move the cheapest surplus tokens of full experts to experts with room."""
    surplus_M = shares.surplus(expert_T)
    value_T, target_T = value_TN.masked_fill(surplus_M[:-1] >= 0, -torch.inf).max(1)
    order = (best_T - value_T).argsort(stable=True)
    source = expert_T[order]
    target = target_T[order]
    leaves = shares.ranks(source) < surplus_M[source]
    wanted = torch.where(leaves, target, shares.expert_M[-1])
    arrives = leaves & (shares.ranks(wanted) < -surplus_M[target])
    return expert_T.scatter(0, order, torch.where(arrives, target, source))


def _filled(expert_T: Tensor, shares: Shares) -> Tensor:
    """Return equal shares: experts with room take the remaining surplus tokens."""
    room_N = (-shares.surplus(expert_T)[:-1]).clamp_(min=0)
    surplus_T = shares.ranks(expert_T) >= shares.share_M[expert_T]
    rank_T = surplus_T.cumsum(0) - 1
    target_T = torch.searchsorted(room_N.cumsum(0), rank_T, right=True)
    return torch.where(surplus_T, target_T, expert_T)
