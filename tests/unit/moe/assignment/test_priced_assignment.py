"""Balanced assignment against scipy, compiled and step by step: shares, gap, prices and starts."""

import itertools
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.moe import balanced_assignment, priced_assignment
from fairseq_mtmoe.moe.assignment import kernels
from fairseq_mtmoe.moe.assignment import stepwise as module
from fairseq_mtmoe.moe.assignment.stepwise import stepwise_assignment
from tests.unit.moe.assignment import made_scores as made

MODES = [(False, made.FAST_GAP), (True, made.EXACT_GAP)]


@pytest.fixture(autouse=True, scope="module", params=[*kernels.BUILDS, "stepwise"])
def implementation(request):
    """Every test here is about every build that this machine can run, and about what runs where there is none."""
    with pytest.MonkeyPatch.context() as context:
        context.setattr(kernels, "BUILDS", {k: v for k, v in kernels.BUILDS.items() if k == request.param})
        yield request.param


def assert_tokens_choose(kind, scores, found):
    """None prefers another expert by more than float32 rounds; nor, where scores differ, does one have to be torn.

    In float32 as in evaluation, the choice is the assignment: its prices are no corner of those that support it.
    """
    value = scores.double() - found.price_N.double()
    lost = value.amax(1) - value[torch.arange(len(scores)), found.expert_T]
    assert lost.max() <= 2e-6 * (scores.abs().max().item() + made.spread_of(scores))
    if kind in made.DISTINCT:
        other = ((scores - found.price_N).argmax(1) != found.expert_T).sum()
        # There, wishes are near what rounding takes away, which is more or less with vectors of another length.
        assert other <= (max(2, len(scores) // 1000) if kind.__name__ == "all_prefer_few" else 0)


@cache
def reference(kind, tokens, experts):
    """What the slow form finds in float64: once for all forms that are compared with it."""
    return stepwise_assignment(made.make(kind, tokens, experts).double(), exact=True)


def test_the_optimum_of_these_tests_is_the_optimum():
    scores = made.make(made.random_scores, 5, 3)
    fair = [e for e in itertools.product(range(3), repeat=5) if sorted(e.count(n) for n in range(3)) == [1, 2, 2]]
    assert made.optimum(scores) == pytest.approx(max(made.total(scores, list(e)) for e in fair))


@pytest.mark.parametrize(("kind", "tokens", "experts"), made.CASES)
def test_gap_to_the_optimum(kind, tokens, experts):
    scores, best = made.make(kind, tokens, experts), made.best_of(kind, tokens, experts)
    for exact, most in MODES:
        found = priced_assignment(scores, exact=exact)
        made.assert_fair(found.expert_T, tokens, experts)
        assert made.gap(scores, found.expert_T, best) <= most
        assert torch.equal(found.expert_T, balanced_assignment(scores, exact=exact))
        assert found.price_N.dtype == torch.float32 and found.price_N.shape == (experts,)
        assert abs(found.price_N.double().mean().item()) <= 1e-6 * (made.spread_of(scores) + 1)
    assert_tokens_choose(kind, scores, found)


@pytest.mark.parametrize(("kind", "tokens", "experts"), made.BATCHES)
def test_all_forms_find_the_same_at_the_size_of_a_batch(kind, tokens, experts):
    scores, right = made.make(kind, tokens, experts), reference(kind, tokens, experts)
    best, spread = made.total(scores, right.expert_T), made.spread_of(scores)
    found, fast = priced_assignment(scores, exact=True), priced_assignment(scores)
    for each, most in ((found, made.EXACT_GAP), (fast, made.FAST_GAP)):
        made.assert_fair(each.expert_T, tokens, experts)
        assert made.gap(scores, each.expert_T, best) <= most
    assert_tokens_choose(kind, scores, found)
    if torch.equal(found.expert_T, right.expert_T):
        assert (found.price_N - right.price_N).abs().max().item() <= 1e-5 * spread + 1e-6
    assert (fast.price_N - right.price_N).abs().max().item() <= 0.03 * spread + 1e-6


def starts(scores):
    own, spread = priced_assignment(scores, exact=True).price_N, made.spread_of(scores)
    noise = torch.randn(len(own), generator=torch.Generator().manual_seed(7))
    odd, one_up, one_down = own.clone(), own.clone(), own.clone()
    odd[0], odd[-1] = torch.nan, torch.inf
    one_up[0] += 1e30
    one_down[0] -= 1e3 * (spread + 1)
    return [own, own + 1000 * spread, own + 0.1 * spread * noise, -own, 1e30 * noise, odd, one_up, one_down]


@pytest.mark.parametrize(("kind", "tokens", "experts"), [*((kind, 500, 16) for kind in made.KINDS), (made.tied, 16, 5)])
def test_any_start_gives_the_promised_assignment(kind, tokens, experts):
    scores = made.make(kind, tokens, experts)
    best = made.total(scores, balanced_assignment(scores.double(), exact=True))
    for (number, start), (exact, most) in itertools.product(enumerate(starts(scores)), MODES):
        found = priced_assignment(scores, start, exact=exact)
        made.assert_fair(found.expert_T, tokens, experts)
        assert made.gap(scores, found.expert_T, best) <= most + 1e-9
        assert found.price_N.isfinite().all()
        if number % 4 == 0:
            again = priced_assignment(scores.clone(), start.clone(), exact=exact)
            assert torch.equal(found.expert_T, again.expert_T) and torch.equal(found.price_N, again.price_N)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_any_scores_and_any_start(data):
    """Floats of any size, infinite ones and NaN, in scores and start: fair shares, and bounded prices."""
    scores = made.any_scores(data, 14, 6)
    tokens, experts = scores.shape
    values = st.sampled_from([0.0, 1.0, -1.0, 100.0, -3e38, 3e38, torch.nan, torch.inf, -torch.inf])
    start = data.draw(st.none() | st.lists(values, min_size=experts, max_size=experts).map(torch.tensor))
    for exact, most in MODES:
        found = priced_assignment(scores, start, exact=exact)
        made.assert_fair(found.expert_T, tokens, experts)
        assert found.price_N.isfinite().all() and (experts > 1 or found.price_N.item() == 0)
        finite = scores[scores.isfinite()].double()
        widest = (finite.max() - finite.min()).item() if len(finite) else 0.0
        assert found.price_N.double().abs().max().item() <= min(1.1 * widest, 3.5e38)
        if tokens and scores.isfinite().all() and scores.abs().max() < 1e30:
            assert made.gap(scores, found.expert_T) <= most


@pytest.mark.parametrize("scale", [1e-38, 1e-3, 3e37])
def test_prices_have_the_unit_of_the_scores(scale):
    scores = made.make(made.random_scores, 300, 8).clamp(-3, 3)
    expected = priced_assignment(scores, exact=True).price_N.double()
    scaled = (scores.double() * scale).float()
    for start in (None, (expected * scale).float()):
        found = priced_assignment(scaled, start, exact=True)
        assert (found.price_N.double() / scale - expected).abs().max().item() <= 1e-4
        assert made.gap(scaled.double() / scale, found.expert_T) <= made.EXACT_GAP


@pytest.mark.parametrize(("exact", "most"), MODES)
def test_scores_that_differ_little_or_in_few_tokens(exact, most):
    tiny = (made.make(made.random_scores, 60, 4).clamp(-3, 3).double() * 1e-44).float()
    assert made.gap(tiny.double() * 1e44, balanced_assignment(tiny, exact=exact)) <= most
    far = made.make(made.random_scores, 300, 8) + 1e5 * torch.randn(300, 1, generator=torch.Generator().manual_seed(2))
    assert made.gap(far, balanced_assignment(far, exact=exact)) <= most
    indivisible = torch.zeros(1000, 4)
    indivisible[0], indivisible[1, 0] = 1.0, 1e-37
    made.assert_fair(balanced_assignment(indivisible, exact=exact), 1000, 4)


@pytest.mark.parametrize(("scale", "offset"), [(1e200, 0.0), (1.0, 1e9)])
def test_float64_is_not_rounded_to_float32(scale, offset):
    scores = scale * made.make(made.random_scores, 50, 4).double() + offset
    assert made.gap(scores / scale, balanced_assignment(scores)) <= made.FAST_GAP


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_give_what_float32_gives(dtype):
    scores = made.make(made.random_scores, 100, 8).to(dtype)
    expert, expected = balanced_assignment(scores, exact=True), balanced_assignment(scores.float(), exact=True)
    assert made.total(scores, expert) == pytest.approx(made.total(scores, expected), rel=1e-5)
    if dtype != torch.float64:  # which nothing rounds to float32, the kernel's type
        assert torch.equal(expert, expected)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 7.0])
def test_equal_scores_have_no_prices_from_any_start(value):
    start = torch.tensor([0.0, 1.0, -1.0, 0.0, 2.0])
    assert (priced_assignment(torch.full((7, 5), value), start).price_N == 0).all()


def test_the_input_is_neither_changed_nor_tracked_and_autocast_does_not_make_it_coarse(device):
    scores = made.make(made.clustered, 1000, 8).t().contiguous().t().requires_grad_()
    before = scores.detach().clone()
    with torch.autocast(device, torch.bfloat16):
        expert = balanced_assignment(scores)
    assert torch.equal(scores.detach(), before)
    assert not expert.requires_grad
    assert torch.equal(expert, balanced_assignment(before.contiguous()))


def test_augmenting_paths_take_over_where_moving_the_surplus_loses_too_much(monkeypatch):
    """Without the bound on the loss the same scores would get a worse assignment; easy ones need no path."""
    monkeypatch.setattr(kernels, "BUILDS", {})
    worst = 0.0
    for seed in range(10):
        scores = made.make(made.tied, 256, 8, seed)
        scores[:, 0] += 1
        with monkeypatch.context() as context:
            context.setattr(module, "ACCEPTED_LOSS", torch.inf)
            worst = max(worst, made.gap(scores, balanced_assignment(scores)))
        assert made.gap(scores, balanced_assignment(scores)) <= made.FAST_GAP
    assert worst > made.FAST_GAP
    monkeypatch.setattr(module, "assign_by_augmenting_paths", lambda *_: pytest.fail("paths are for hard cases"))
    for seed in range(5):
        made.assert_fair(balanced_assignment(made.make(made.random_scores, 2000, 16, seed)), 2000, 16)
