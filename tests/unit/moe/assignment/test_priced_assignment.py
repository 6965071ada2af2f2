"""Prices of balanced assignments: tokens choose by them, all forms find the same ones, others may begin with them."""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.moe import balanced_assignment, priced_assignment
from fairseq_mtmoe.moe.assignment import kernels
from fairseq_mtmoe.moe.assignment.stepwise import stepwise_assignment
from tests.unit.moe.assignment.test_assignment import (
    EXACT_GAP,
    FAST_GAP,
    KINDS,
    SIZES,
    any_scores,
    assert_fair,
    constant,
    gap,
    make,
    random_scores,
    rounded,
    tied,
    total,
)

DISTINCT = [kind for kind in KINDS if kind not in (tied, constant, rounded)]


@pytest.fixture(autouse=True, scope="module", params=[*kernels.BUILDS, "stepwise"])
def implementation(request):
    """Every test here is about every build that this machine can run, and about what runs where there is none."""
    with pytest.MonkeyPatch.context() as context:
        context.setattr(kernels, "BUILDS", {k: v for k, v in kernels.BUILDS.items() if k == request.param})
        yield request.param


def spread_of(scores):
    return (scores.amax(1) - scores.amin(1)).double().mean().item()


def torn(scores, found):
    """Tokens that another expert is worth more to than their own, by more than float32 rounds."""
    value = scores.double() - found.price_N.double()
    lost = value.amax(1) - value[torch.arange(len(scores)), found.expert_T]
    return int((lost > 2e-6 * (scores.abs().max().item() + spread_of(scores))).sum())


@cache
def reference(kind, tokens, experts):
    """What the slow form finds in float64: once for all forms that are compared with it."""
    return stepwise_assignment(make(kind, tokens, experts).double(), exact=True)


def starts(scores):
    own = priced_assignment(scores, exact=True).price_N
    noise = torch.randn(len(own), generator=torch.Generator().manual_seed(7))
    odd, one_up, one_down = own.clone(), own.clone(), own.clone()
    odd[0], odd[-1] = torch.nan, torch.inf
    one_up[0] += 1e30
    one_down[0] -= 1e3 * (spread_of(scores) + 1)
    near = own + 0.1 * spread_of(scores) * noise
    return [own, own + 1000 * spread_of(scores), near, -own, 1e30 * noise, 1e-30 * noise, odd, one_up, one_down]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "experts"), [*SIZES, (4096, 16), (4099, 64)])
def test_tokens_choose_their_experts_at_the_prices(kind, tokens, experts):
    scores = make(kind, tokens, experts)
    found = priced_assignment(scores, exact=True)
    assert found.price_N.dtype == torch.float32 and found.price_N.shape == (experts,)
    assert abs(found.price_N.double().mean().item()) <= 1e-6 * (spread_of(scores) + 1)
    assert torn(scores, found) == 0


@pytest.mark.parametrize("kind", DISTINCT)
@pytest.mark.parametrize(("tokens", "experts"), [*SIZES, (4096, 16), (4099, 64)])
def test_nobody_is_torn_who_need_not_be(kind, tokens, experts):
    """In float32 as in evaluation, the choice is the assignment: its prices are no corner of those that support it."""
    scores = make(kind, tokens, experts)
    found = priced_assignment(scores, exact=True)
    other = ((scores - found.price_N).argmax(1) != found.expert_T).sum()
    # There, wishes are near what rounding takes away, which is more or less with vectors of another length.
    assert other <= (max(2, tokens // 1000) if kind.__name__ == "all_prefer_few" else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "experts"), [(640, 40), (4096, 16), (4099, 64)])
def test_all_forms_find_the_same_prices(kind, tokens, experts):
    scores = make(kind, tokens, experts)
    found, right = priced_assignment(scores, exact=True), reference(kind, tokens, experts)
    if torch.equal(found.expert_T, right.expert_T):
        assert (found.price_N - right.price_N).abs().max().item() <= 1e-5 * spread_of(scores) + 1e-6
    fast = priced_assignment(scores)
    assert (fast.price_N - right.price_N).abs().max().item() <= 0.03 * spread_of(scores) + 1e-6


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "experts"), [(16, 5), (37, 8), (500, 16), (3000, 8)])
def test_any_start_gives_the_promised_assignment(kind, tokens, experts, exact):
    scores = make(kind, tokens, experts)
    best = total(scores, balanced_assignment(scores.double(), exact=True))
    limit = (EXACT_GAP if exact else FAST_GAP) * spread_of(scores) * tokens + 1e-9
    for number, start in enumerate(starts(scores)):
        found = priced_assignment(scores, start, exact=exact)
        assert_fair(found.expert_T, tokens, experts)
        assert best - total(scores, found.expert_T) <= limit
        assert found.price_N.isfinite().all()
        if number % 4 == 0:  # the first one, one in the middle, and the last
            again = priced_assignment(scores.clone(), start.clone(), exact=exact)
            assert torch.equal(found.expert_T, again.expert_T) and torch.equal(found.price_N, again.price_N)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_any_scores_and_any_start(data):
    """Floats of any size, infinite ones and NaN, in scores and start: fair shares, and bounded prices."""
    scores = any_scores(data, 14, 6)
    tokens, experts = scores.shape
    values = st.sampled_from([0.0, 1.0, -1.0, 100.0, -3e38, 3e38, torch.nan, torch.inf, -torch.inf])
    start = torch.tensor(data.draw(st.lists(values, min_size=experts, max_size=experts)))
    for exact in (False, True):
        found = priced_assignment(scores, start, exact=exact)
        assert_fair(found.expert_T, tokens, experts)
        assert found.price_N.isfinite().all()
        finite = scores[scores.isfinite()].double()
        most = (finite.max() - finite.min()).item() if len(finite) else 0.0
        assert found.price_N.double().abs().max().item() <= min(1.1 * most, 3.5e38)
        if tokens and scores.isfinite().all() and scores.abs().max() < 1e30:
            assert gap(scores, found.expert_T) <= (EXACT_GAP if exact else FAST_GAP)


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-3, 1e3, 1e30, 3e37])
def test_prices_have_the_unit_of_the_scores(scale):
    scores = make(random_scores, 300, 8).clamp(-3, 3)
    expected = priced_assignment(scores, exact=True).price_N.double()
    scaled = (scores.double() * scale).float()
    found = priced_assignment(scaled, exact=True).price_N.double() / scale
    assert (found - expected).abs().max().item() <= 1e-4
    warm = priced_assignment(scaled, (expected * scale).float(), exact=True).price_N.double() / scale
    assert (warm - expected).abs().max().item() <= 1e-4


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf, 0.0, 7.0])
def test_equal_scores_have_no_prices(value):
    assert (priced_assignment(torch.full((11, 4), value), exact=True).price_N == 0).all()
    start = torch.tensor([0.0, 1.0, -1.0, 0.0, 2.0])
    assert (priced_assignment(torch.full((7, 5), value), start).price_N == 0).all()


def test_no_token_and_one_expert():
    found = priced_assignment(torch.zeros(0, 5), torch.ones(5))
    assert found.expert_T.shape == (0,) and found.price_N.tolist() == [0] * 5
    assert priced_assignment(torch.full((4, 1), torch.nan), torch.ones(1)).price_N.tolist() == [0]
