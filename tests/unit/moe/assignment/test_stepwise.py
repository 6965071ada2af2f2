"""The stepwise assignment's parts: prices at which demand is even, and paths by which many tokens move at once."""

import pytest
import torch

from fairseq_mtmoe.moe.assignment import augmenting_paths
from fairseq_mtmoe.moe.assignment import dual_prices as module
from fairseq_mtmoe.moe.assignment.dual_prices import COARSE, FINE, larger_shares, solve_dual


def scores(tokens, experts, slant=1.0):
    drawn = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(0))
    drawn = drawn + slant * torch.linspace(0, 4, experts)
    drawn = drawn - drawn.amax(1, keepdim=True)
    return drawn / -drawn.amin(1).mean()


def surplus(drawn, prices):
    """The share of tokens that cannot have what they prefer."""
    tokens, experts = drawn.shape
    demand = torch.bincount((drawn - prices).argmax(1), minlength=experts)
    return ((demand - tokens / experts).clamp(min=0).sum() / tokens).item()


@pytest.mark.parametrize(("tokens", "experts"), [(304, 8), (4000, 8), (8000, 32)])
def test_demand_is_about_even(tokens, experts):
    drawn = scores(tokens, experts)
    assert surplus(drawn, torch.zeros(experts)) > 0.3
    coarse = solve_dual(drawn, COARSE)
    assert surplus(drawn, coarse) < 0.02
    assert surplus(drawn, solve_dual(drawn, FINE, coarse)) < 0.005


@pytest.fixture
def sizes(monkeypatch):
    """Of how many tokens the solver asks for the demand, step by step."""
    sizes, demand = [], module._demand
    monkeypatch.setattr(module, "_demand", lambda rows, *rest: sizes.append(len(rows)) or demand(rows, *rest))
    return sizes


def test_a_sample_is_enough_for_the_first_temperatures(sizes):
    solve_dual(scores(4000, 8), COARSE)
    assert sizes[0] == 256 and sizes[-1] == 4000 and sizes.count(4000) <= 4


def test_steps_are_bounded_where_there_is_nothing_to_find(sizes):
    """Tied scores have no prices at which demand is even."""
    assert solve_dual(torch.randint(0, 2, (500, 16)).float() - 1, COARSE + FINE).isfinite().all()
    assert len(sizes) <= module.MOST_STEPS * len(COARSE + FINE)


def test_larger_shares_go_to_the_dearest():
    prices = torch.tensor([0.1, 0.3, 0.2, 0.3])
    assert larger_shares(prices, 9).tolist() == [False, True, False, False]
    assert larger_shares(prices, 11).tolist() == [False, True, True, True]
    assert larger_shares(prices, 8).tolist() == [False] * 4


def test_equal_tokens_move_together():
    """A thousand equal tokens need one path for each pair of experts rather than one for each token."""
    state = augmenting_paths._AugmentingPaths(torch.zeros(1000, 4), torch.zeros(4), 1e-4)
    paths = 0
    while state.advance():
        paths += 1
    assert paths == 3
    assert torch.bincount(state.expert_T, minlength=4).tolist() == [250] * 4
