"""Balanced assignment against scipy's exact one: shares, gap to the optimum, odd scores, and that it always ends."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from fairseq_mtmoe.moe import balanced_assignment
from fairseq_mtmoe.moe.assignment import kernels
from fairseq_mtmoe.moe.assignment import stepwise as module

FAST_GAP, EXACT_GAP = 1e-3, 1e-6


@pytest.fixture(autouse=True, scope="module", params=["compiled", "stepwise"])
def implementation(request):
    """Every test here is about both: the compiled kernel, and what runs where there is none."""
    with pytest.MonkeyPatch.context() as context:
        if request.param == "stepwise":
            context.setattr(kernels, "BUILDS", {})
        yield request.param


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


def heavy_tailed(generator, tokens, experts):
    return torch.randn(tokens, experts, generator=generator) / torch.rand(tokens, 1, generator=generator).clamp(1e-3)


def rounded(generator, tokens, experts):
    return clustered(generator, tokens, experts).bfloat16()


KINDS = [random_scores, all_prefer_few, slanted, clustered, tied, constant, heavy_tailed, rounded]
SIZES = [(3, 16), (16, 5), (37, 8), (64, 64), (200, 7), (500, 16), (640, 40)]


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


def gap(scores, expert):
    """Distance to the optimum, in units of the sum of each token's highest - lowest score."""
    scores = scores.double()
    spread = (scores.amax(1) - scores.amin(1)).sum().item()
    return (optimum(scores) - total(scores, expert)) / spread if spread else 0.0


def assert_fair(expert, tokens, experts):
    assert expert.shape == (tokens,) and expert.dtype == torch.long
    counts = torch.bincount(expert, minlength=experts).tolist()
    assert len(counts) == experts
    assert set(counts) <= {tokens // experts, math.ceil(tokens / experts)}


def test_the_optimum_of_these_tests_is_the_optimum():
    scores = make(random_scores, 5, 3)
    fair = [e for e in itertools.product(range(3), repeat=5) if sorted(e.count(n) for n in range(3)) == [1, 2, 2]]
    assert optimum(scores) == pytest.approx(max(total(scores, list(e)) for e in fair))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "experts"), SIZES)
def test_gap_to_the_optimum(kind, tokens, experts):
    scores = make(kind, tokens, experts)
    fast, exact = balanced_assignment(scores), balanced_assignment(scores, exact=True)
    assert_fair(fast, tokens, experts)
    assert_fair(exact, tokens, experts)
    assert gap(scores, fast) <= FAST_GAP
    assert gap(scores, exact) <= EXACT_GAP


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "experts"), [(4096, 16), (4099, 64)])
def test_gap_at_the_size_of_a_batch(kind, tokens, experts):
    scores = make(kind, tokens, experts)
    fast, exact = balanced_assignment(scores), balanced_assignment(scores, exact=True)
    assert_fair(fast, tokens, experts)
    assert_fair(exact, tokens, experts)
    spread = (scores.amax(1) - scores.amin(1)).double().sum().item()
    assert total(scores, exact) - total(scores, fast) <= FAST_GAP * spread


def any_scores(data, most_tokens, most_experts):
    """Drawn scores of a drawn shape: few values, ordinary ones, or floats of any size, infinite ones and NaN too."""
    tokens, experts = data.draw(st.integers(0, most_tokens)), data.draw(st.integers(1, most_experts))
    values = data.draw(st.sampled_from([
        st.integers(-2, 2).map(float),
        st.floats(-100, 100, width=32),
        st.floats(width=32),
    ]))  # fmt: skip
    row = st.lists(values, min_size=experts, max_size=experts)
    rows = data.draw(st.lists(row, min_size=tokens, max_size=tokens))
    return torch.tensor(rows).view(tokens, experts)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.data())
def test_any_scores_of_any_shape(data):
    """Floats of any size, infinite ones and NaN among them: shares are fair, and the gap holds where it is defined."""
    scores = any_scores(data, 14, 6)
    tokens, experts = scores.shape
    for exact in (False, True):
        expert = balanced_assignment(scores, exact=exact)
        assert_fair(expert, tokens, experts)
        assert torch.equal(expert, balanced_assignment(scores.clone(), exact=exact))
        if tokens and scores.isfinite().all() and scores.abs().max() < 1e30:
            assert gap(scores, expert) <= (EXACT_GAP if exact else FAST_GAP)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e30, 3e37])
def test_scores_of_extreme_size(scale, exact):
    scores = make(random_scores, 60, 4).clamp(-3, 3).double()
    scaled = (scores * scale).float()
    expert = balanced_assignment(scaled, exact=exact)
    assert_fair(expert, 60, 4)
    assert gap(scaled.double() / scale, expert) <= (EXACT_GAP if exact else FAST_GAP)


@pytest.mark.parametrize("exact", [False, True])
def test_an_offset_changes_nothing(exact):
    scores = make(random_scores, 300, 8)
    scores = scores + 1e5 * torch.randn(300, 1, generator=torch.Generator().manual_seed(2))
    assert gap(scores, balanced_assignment(scores, exact=exact)) <= (EXACT_GAP if exact else FAST_GAP)


@pytest.mark.parametrize("exact", [False, True])
def test_infinite_scores_count_as_the_highest_and_lowest_finite_one(exact):
    scores = make(random_scores, 40, 4)
    odd = scores.clone()
    odd[3, 2], odd[5, 1], odd[6, 0] = torch.inf, -torch.inf, torch.nan
    scores[3, 2], scores[5, 1], scores[6, 0] = scores.max(), scores.min(), scores.min()
    assert torch.equal(balanced_assignment(odd, exact=exact), balanced_assignment(scores, exact=exact))
    assert balanced_assignment(odd, exact=exact)[3] == 2


@pytest.mark.parametrize("exact", [False, True])
def test_differences_too_small_to_divide_by(exact):
    scores = torch.zeros(1000, 4)
    scores[0], scores[1, 0] = 1.0, 1e-37
    assert_fair(balanced_assignment(scores, exact=exact), 1000, 4)


@pytest.mark.parametrize(("scale", "offset"), [(1e200, 0.0), (1.0, 1e9)])
def test_float64_is_not_rounded_to_float32(scale, offset):
    scores = scale * make(random_scores, 50, 4).double() + offset
    assert gap(scores / scale, balanced_assignment(scores)) <= FAST_GAP


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 0.0])
def test_no_finite_score_at_all(value):
    assert_fair(balanced_assignment(torch.full((11, 4), value)), 11, 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_give_what_float32_gives(dtype):
    scores = make(random_scores, 100, 8).to(dtype)
    expert, expected = balanced_assignment(scores, exact=True), balanced_assignment(scores.float(), exact=True)
    assert total(scores, expert) == pytest.approx(total(scores, expected), rel=1e-5)
    if dtype != torch.float64:  # which nothing rounds to float32, the kernel's type
        assert torch.equal(expert, expected)


def test_the_input_is_neither_changed_nor_tracked():
    scores = make(random_scores, 100, 8).t().contiguous().t().requires_grad_()
    before = scores.detach().clone()
    expert = balanced_assignment(scores)
    assert torch.equal(scores.detach(), before)
    assert not expert.requires_grad
    assert torch.equal(expert, balanced_assignment(before.contiguous()))


def test_autocast_does_not_make_it_coarse(device):
    scores = make(clustered, 1000, 8)
    with torch.autocast(device, torch.bfloat16):
        expert = balanced_assignment(scores)
    assert torch.equal(expert, balanced_assignment(scores))


def test_no_token_and_one_expert():
    assert balanced_assignment(torch.zeros(0, 5)).shape == (0,)
    assert balanced_assignment(torch.full((4, 1), torch.nan)).tolist() == [0, 0, 0, 0]


def test_chains_take_over_where_moving_the_surplus_loses_too_much(monkeypatch):
    """Without the bound on the loss the same scores would get a worse assignment."""
    monkeypatch.setattr(kernels, "BUILDS", {})
    worst = 0.0
    for seed in range(10):
        scores = make(tied, 256, 8, seed)
        scores[:, 0] += 1
        with monkeypatch.context() as context:
            context.setattr(module, "ACCEPTED_LOSS", torch.inf)
            worst = max(worst, gap(scores, balanced_assignment(scores)))
        assert gap(scores, balanced_assignment(scores)) <= FAST_GAP
    assert worst > FAST_GAP


def test_the_fast_way_is_taken_where_it_is_good_enough(monkeypatch):
    def refuse(*args):
        raise AssertionError("chains are for hard cases")

    monkeypatch.setattr(kernels, "BUILDS", {})
    monkeypatch.setattr(module, "assign_by_augmenting_paths", refuse)
    for seed in range(5):
        assert_fair(balanced_assignment(make(random_scores, 2000, 16, seed)), 2000, 16)
