"""Augmenting paths: optimal from any start, with the places for one token more going where they gain most."""

import pytest
import torch

from fairseq_mtmoe.moe.assignment import augmenting_paths
from fairseq_mtmoe.moe.assignment.augmenting_paths import assign_by_augmenting_paths


def counts(expert, experts):
    return torch.bincount(expert, minlength=experts).tolist()


def test_a_chain_through_a_third_expert():
    """Experts 0 and 1 hold two tokens each and 2 none; only the token at 1 can go to 2 cheaply, so 0 gives to 1."""
    scores = torch.tensor([[1.0, 0.9, -9], [1.0, -9, -9], [-9, 1.0, 0.9], [-9, 1.0, -9], [1.0, -9, -9], [-9, 1.0, -9]])
    scores = scores.double()
    expert = assign_by_augmenting_paths(scores, torch.zeros(3).double(), 1e-9).expert_T
    # Each of 0, 1, 2 must hold two; tokens 1, 4 want 0, tokens 3, 5 want 1, and 0 and 2 are the flexible ones.
    assert counts(expert, 3) == [2, 2, 2]
    best = max(
        sum(scores[token, choice].item() for token, choice in enumerate(choices))
        for choices in torch.cartesian_prod(*[torch.arange(3)] * 6).tolist()
        if counts(torch.tensor(choices), 3) == [2, 2, 2]
    )
    assert scores[torch.arange(6), expert].sum().item() == pytest.approx(best)


def test_the_larger_share_moves_to_the_expert_that_gains_most():
    """Prices say that expert 1 is dearest, the scores that every token wants expert 0."""
    scores = torch.tensor([[5.0, 0, 0], [5, 0, 0], [5, 0, 0], [5, 0, 0]]).double()
    expert = assign_by_augmenting_paths(scores, torch.tensor([0.0, 3, 0]).double(), 1e-9).expert_T
    assert counts(expert, 3)[0] == 2


@pytest.mark.parametrize("tolerance", [0.0, 1e-9, 1e-4])
def test_bad_prices_cost_time_but_nothing_else(tolerance):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(60, 7, generator=generator).double()
    good = assign_by_augmenting_paths(scores, torch.zeros(7).double(), tolerance).expert_T
    bad = assign_by_augmenting_paths(scores, 5 * torch.randn(7, generator=generator).double(), tolerance).expert_T
    tokens = torch.arange(60)
    assert scores[tokens, bad].sum().item() == pytest.approx(scores[tokens, good].sum().item(), abs=0.01)
    assert sorted(counts(bad, 7)) == [8, 8, 8, 9, 9, 9, 9]


def test_equal_tokens_move_together():
    """A thousand equal tokens need one path for each pair of experts rather than one for each token."""
    state = augmenting_paths._AugmentingPaths(torch.zeros(1000, 4), torch.zeros(4), 1e-4)
    paths = 0
    while state.advance():
        paths += 1
    assert paths == 3
    assert counts(state.expert_T, 4) == [250] * 4
