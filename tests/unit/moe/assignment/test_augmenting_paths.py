"""Augmenting paths: optimal from any start, with the places for one token more going where they gain most."""

import torch

from fairseq_mtmoe.moe.assignment import augmenting_paths
from fairseq_mtmoe.moe.assignment.augmenting_paths import assign_by_augmenting_paths


def counts(expert, experts):
    return torch.bincount(expert, minlength=experts).tolist()


def test_the_larger_share_moves_to_the_expert_that_gains_most():
    """Prices say that expert 1 is dearest, the scores that every token wants expert 0."""
    scores = torch.tensor([[5.0, 0, 0], [5, 0, 0], [5, 0, 0], [5, 0, 0]]).double()
    expert = assign_by_augmenting_paths(scores, torch.tensor([0.0, 3, 0]).double(), 1e-9).expert_T
    assert counts(expert, 3)[0] == 2


def test_equal_tokens_move_together():
    """A thousand equal tokens need one path for each pair of experts rather than one for each token."""
    state = augmenting_paths._AugmentingPaths(torch.zeros(1000, 4), torch.zeros(4), 1e-4)
    paths = 0
    while state.advance():
        paths += 1
    assert paths == 3
    assert counts(state.expert_T, 4) == [250] * 4
