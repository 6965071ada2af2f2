"""Scores of many kinds for balanced assignment, and what an assignment must hold to: shares, and the gap to scipy's."""

import math
from functools import cache

import numpy as np
import torch
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

FAST_GAP, EXACT_GAP = 1e-3, 1e-6


def random_scores(generator, tokens, experts):
    return torch.randn(tokens, experts, generator=generator)


def all_prefer_few(generator, tokens, experts):
    """Every token wants the same eighth of the experts, and its own wishes are a thousand times weaker."""
    favoured = torch.arange(experts) < max(1, experts // 8)
    return 0.01 * torch.randn(tokens, experts, generator=generator) + 10.0 * favoured


def slanted(generator, tokens, experts):
    return torch.randn(tokens, experts, generator=generator) + torch.linspace(0, 4, experts)


def clustered(generator, tokens, experts):
    """As after training: tokens come in kinds, and a kind has a favourite."""
    centres = 2 * torch.randn(20, 64, generator=generator)
    hidden = centres[torch.randint(20, (tokens,), generator=generator)]
    hidden = hidden + 0.3 * torch.randn(tokens, 64, generator=generator)
    return hidden @ (0.1 * torch.randn(experts, 64, generator=generator)).t()


def tied(generator, tokens, experts):
    return torch.randint(0, 3, (tokens, experts), generator=generator).float()


def constant(generator, tokens, experts):
    return torch.full((tokens, experts), 0.3)


def rounded(generator, tokens, experts):
    return clustered(generator, tokens, experts).bfloat16()


KINDS = [random_scores, all_prefer_few, slanted, clustered, tied, constant, rounded]
DISTINCT = [kind for kind in KINDS if kind not in (tied, constant, rounded)]  # no two scores are equal
SIZES = [(1, 7), (3, 16), (15, 16), (16, 5), (33, 31), (64, 64), (64, 300), (200, 7), (500, 16), (640, 40)]
CASES = [*((kind, 37, 8) for kind in KINDS), *((random_scores, *size) for size in SIZES), (tied, 500, 16)]
BATCHES = [*((kind, 4099, 64) for kind in KINDS), (clustered, 4096, 16), (clustered, 8192, 8)]


def make(kind, tokens, experts, seed=1):
    return kind(torch.Generator().manual_seed(seed), tokens, experts)


def total(scores, expert):
    return scores.double()[torch.arange(len(scores)), expert].sum().item()


def optimum(scores):
    """The highest sum with ⌊T/N⌋ or ⌈T/N⌉ tokens per expert.

    Each expert has ⌊T/N⌋ seats that must be taken, and where T is no multiple of N a spare one; as many dummies as
    spare seats stay empty sit there, because they may not sit elsewhere.
    """
    scores = scores.double().cpu().numpy()
    tokens, experts = scores.shape
    least, larger = divmod(tokens, experts)
    seats = np.repeat(scores, least, axis=1)
    if larger:
        dummies = experts - larger
        forbidden = -(np.ptp(scores) + 1) * (tokens + experts)
        seats = np.block([
            [seats, scores],
            [np.full((dummies, seats.shape[1]), forbidden), np.zeros((dummies, experts))],
        ])  # fmt: skip
    rows, columns = linear_sum_assignment(seats, maximize=True)
    return seats[rows, columns][rows < tokens].sum()


def upper_bound(scores, price):
    """No fair assignment has a higher sum, whatever the prices are (duality).

    It is quick where scipy takes minutes. The dearest experts have the larger shares.
    """
    scores, price = scores.double(), price.double()
    least, larger = divmod(*scores.shape)
    dearest = price.sort(descending=True).values[:larger]
    return ((scores - price).amax(1).sum() + least * price.sum() + dearest.sum()).item()


def spread_of(scores):
    """The mean over tokens of highest - lowest score."""
    return (scores.amax(1) - scores.amin(1)).double().mean().item()


def gap(scores, expert, best=None):
    """Distance to the optimum (or another sum), in units of the sum over tokens of highest - lowest score."""
    scores = scores.double()
    spread = len(scores) * spread_of(scores)
    return ((optimum(scores) if best is None else best) - total(scores, expert)) / spread if spread else 0.0


@cache
def best_of(kind, tokens, experts):
    """The optimum of `make`'s scores, once for all that is compared with it."""
    return optimum(make(kind, tokens, experts))


def assert_fair(expert, tokens, experts):
    assert expert.shape == (tokens,) and expert.dtype == torch.long
    counts = torch.bincount(expert, minlength=experts).tolist()
    assert len(counts) == experts and set(counts) <= {tokens // experts, math.ceil(tokens / experts)}


def any_scores(data, most_tokens, most_experts):
    """Drawn scores of a drawn shape: few values, ordinary ones, or floats of any size, infinite ones and NaN too."""
    tokens, experts = data.draw(st.integers(0, most_tokens)), data.draw(st.integers(1, most_experts))
    kinds = st.integers(-2, 2).map(float), st.floats(-100, 100, width=32), st.floats(width=32)
    row = st.lists(data.draw(st.sampled_from(kinds)), min_size=experts, max_size=experts)
    return torch.tensor(data.draw(st.lists(row, min_size=tokens, max_size=tokens))).view(tokens, experts)
