"""The compiled assignment, in every build that this machine can run: shares, optimum, prices, starts and hard cases."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.moe import priced_assignment
from fairseq_mtmoe.moe.assignment import kernels
from tests.unit.moe.assignment import made_scores as made


@pytest.fixture(autouse=True, scope="module", params=[*kernels.BUILDS] or ["none"])
def build(request):
    if not kernels.BUILDS:
        pytest.skip("the library is not built")
    with pytest.MonkeyPatch.context() as context:
        builds = {name: build for name, build in kernels.BUILDS.items() if name == request.param}
        context.setattr(kernels, "BUILDS", builds)
        yield


def assert_tokens_choose(kind, scores, assignment):
    """No token prefers another expert by more than float32 rounds; where scores differ, none is torn.

    In float32 as in evaluation, the choice is the assignment: its prices are no corner of those that support it.
    """
    value = scores.double() - assignment.price_N.double()
    lost = value.amax(1) - value[torch.arange(len(scores)), assignment.expert_T]
    assert lost.max() <= 2e-6 * (scores.abs().max().item() + made.spread_of(scores))
    if kind in made.DISTINCT:
        other = ((scores - assignment.price_N).argmax(1) != assignment.expert_T).sum()
        # There, wishes are near what rounding takes away, which is more or less with vectors of another length.
        assert other <= (max(2, len(scores) // 1000) if kind.__name__ == "all_prefer_few" else 0)


def test_the_optimum_of_these_tests_is_the_optimum():
    scores = made.make(made.random_scores, 5, 3)
    fair = [e for e in itertools.product(range(3), repeat=5) if sorted(e.count(n) for n in range(3)) == [1, 2, 2]]
    best = max(made.total(scores, list(e)) for e in fair)
    assert made.optimum(scores) == pytest.approx(best)
    assert made.upper_bound(scores, priced_assignment(scores).price_N) == pytest.approx(best)
    assert made.upper_bound(scores, torch.arange(3)) > best


@pytest.mark.parametrize(("kind", "tokens", "experts"), made.CASES)
def test_it_is_the_optimum(kind, tokens, experts):
    scores = made.make(kind, tokens, experts)
    assignment = priced_assignment(scores)
    made.assert_fair(assignment.expert_T, tokens, experts)
    assert made.gap(scores, assignment.expert_T, made.best_of(kind, tokens, experts)) <= made.EXACT_GAP
    assert assignment.price_N.dtype == torch.float32 and assignment.price_N.shape == (experts,)
    assert abs(assignment.price_N.double().mean().item()) <= 1e-6 * (made.spread_of(scores) + 1)
    assert_tokens_choose(kind, scores, assignment)


HARD = {
    "one expert for all": lambda: (torch.arange(48) == 0).float().repeat(8000, 1),
    "one row": lambda: made.make(made.random_scores, 1, 48).repeat(8000, 1),
    "few rows": lambda: made.make(made.random_scores, 10, 48).repeat(800, 1),
    # The slowest kind: in the best assignment every expert has two neighbours to exchange tokens with.
    "one direction": lambda: made.make(made.random_scores, 8000, 1) @ made.make(made.random_scores, 1, 48, seed=2),
    "one token aside": lambda: torch.cat(
        [1e-6 * made.make(made.random_scores, 7999, 48), 1e6 * made.make(made.random_scores, 1, 48)]
    ),
    # In units of the spread the offset is infinite.
    "an offset per token": lambda: torch.cat(
        [torch.full((150, 8), 1e30), 1e-20 * made.make(made.random_scores, 150, 8)]
    ),
    "large offsets": lambda: made.make(made.random_scores, 300, 8) + 1e5 * made.make(made.random_scores, 300, 1, 2),
}


@pytest.mark.parametrize("case", [*HARD, *made.BATCHES])
def test_hard_cases_and_batches_end_at_the_optimum(case):
    scores = HARD[case]() if case in HARD else made.make(*case)
    assignment = kernels.assign(scores)
    made.assert_fair(assignment.expert_T, *scores.shape)
    bound = made.upper_bound(scores, assignment.price_N)
    assert made.gap(scores, assignment.expert_T, bound) <= made.EXACT_GAP
    if case not in HARD:
        assert_tokens_choose(case[0], scores, assignment)


@pytest.mark.parametrize(("kind", "tokens", "experts"), [*((kind, 500, 16) for kind in made.KINDS), (made.tied, 16, 5)])
def test_any_start_gives_the_optimum(kind, tokens, experts):
    scores = made.make(kind, tokens, experts)
    spread, price_N = made.spread_of(scores), priced_assignment(scores).price_N
    best = made.best_of(kind, tokens, experts)
    noise = torch.randn(experts, generator=torch.Generator().manual_seed(7))
    odd, one_up, one_down = price_N.clone(), price_N.clone(), price_N.clone()
    odd[0], odd[-1] = torch.nan, torch.inf
    one_up[0] += 1e30
    one_down[0] -= 1e3 * (spread + 1)
    near = price_N + 0.1 * spread * noise
    for start in (price_N, price_N + 1000 * spread, near, -price_N, 1e30 * noise, odd, one_up, one_down):
        assignment = priced_assignment(scores, start)
        made.assert_fair(assignment.expert_T, tokens, experts)
        assert made.gap(scores, assignment.expert_T, best) <= made.EXACT_GAP
        assert assignment.price_N.isfinite().all()
        again = priced_assignment(scores.clone(), start.clone())
        assert torch.equal(assignment.expert_T, again.expert_T) and torch.equal(assignment.price_N, again.price_N)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_any_scores_and_any_start(data):
    """Floats of any size, infinite ones and NaN, in scores and start: fair shares, and bounded prices."""
    scores = made.any_scores(data, 14, 6)
    tokens, experts = scores.shape
    values = st.sampled_from([0.0, 1.0, -1.0, 100.0, -3e38, 3e38, torch.nan, torch.inf, -torch.inf])
    start = data.draw(st.none() | st.lists(values, min_size=experts, max_size=experts).map(torch.tensor))
    assignment = priced_assignment(scores, start)
    made.assert_fair(assignment.expert_T, tokens, experts)
    assert assignment.price_N.isfinite().all() and (experts > 1 or assignment.price_N.item() == 0)
    if tokens and kernels.assign(scores) is not None:
        assert made.gap(scores, assignment.expert_T) <= made.EXACT_GAP


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_input_is_neither_changed_nor_tracked_and_neither_types_nor_autocast_make_it_coarse(dtype):
    scores = made.make(made.clustered, 1000, 8).to(dtype).t().contiguous().t().requires_grad_()
    before = scores.detach().clone()
    with torch.autocast("cpu", torch.bfloat16):
        expert_T = priced_assignment(scores).expert_T
    assert torch.equal(scores.detach(), before)
    assert not expert_T.requires_grad
    assert torch.equal(expert_T, priced_assignment(before.float().contiguous()).expert_T)


@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf, 2e30, -2e30])
def test_what_is_left_to_torch(odd):
    scores = made.make(made.random_scores, 100, 8)
    for other in (scores.to("meta"), 1e-38 * scores):
        assert kernels.assign(other) is None
    for place in ((0, 0), (57, 3), (99, 7)):
        changed = scores.clone()
        changed[place] = odd
        assert kernels.assign(changed) is None


def test_the_same_scores_give_the_same_answer_in_many_threads():
    scores = [made.make(kind, 3000, 24) for kind in made.KINDS]

    def experts(scores_TN):
        return kernels.assign(scores_TN).expert_T.tolist()

    with ThreadPoolExecutor(len(scores)) as threads:
        assert list(threads.map(experts, scores)) == list(map(experts, scores))
