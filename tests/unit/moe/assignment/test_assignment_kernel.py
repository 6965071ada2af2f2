"""The compiled assignment: what it leaves to torch, threads, and that it always ends."""

import threading
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.moe.assignment import kernels
from fairseq_mtmoe.moe.assignment.stepwise import stepwise_assignment
from tests.unit.moe.assignment.made_scores import (
    EXACT_GAP,
    KINDS,
    any_scores,
    assert_fair,
    gap,
    make,
    optimum,
    random_scores,
    tied,
    total,
)

needs_library = pytest.mark.skipif(not kernels.BUILDS, reason="the library is not built")


@pytest.fixture(scope="module", params=[*kernels.BUILDS] or ["none"], autouse=True)
def build(request):
    """Every test here is about every build that this machine can run."""
    with pytest.MonkeyPatch.context() as context:
        context.setattr(kernels, "BUILDS", {k: v for k, v in kernels.BUILDS.items() if k == request.param})
        yield


@needs_library
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_any_scores_of_any_shape(data):
    """Floats of any size, infinite ones and NaN among them: the optimum, or a refusal that says leave it to torch."""
    scores = any_scores(data, 20, 18)
    tokens, experts = scores.shape
    found = kernels.assign(scores)
    if found is None:
        spread = (scores.amax(1) - scores.amin(1)).double().mean()
        assert not (scores.abs() <= 1e30).all() or 0 < spread < 1e-30
        return
    assert scores.isfinite().all()
    assert_fair(found.expert_T, tokens, experts)
    if tokens:
        assert gap(scores, found.expert_T) <= EXACT_GAP


@needs_library
def test_an_offset_per_token_changes_nothing():
    offset = 1e5 * torch.randn(300, 1, generator=torch.Generator().manual_seed(2))
    far = torch.cat(
        [torch.full((150, 8), 1e30), 1e-20 * make(random_scores, 150, 8)]
    )  # in units of the spread: infinite
    for scores in (make(random_scores, 300, 8) + offset, far):
        expert = kernels.assign(scores).expert_T
        assert_fair(expert, 300, 8)
        assert gap(scores, expert) <= EXACT_GAP


@needs_library
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf, 2e30, -2e30])
def test_what_is_left_to_torch(odd):
    for place in ((0, 0), (0, 7), (57, 3), (99, 7)):
        scores = make(random_scores, 100, 8)
        scores[place] = odd
        assert kernels.assign(scores) is None
    scores = make(random_scores, 100, 8)
    assert kernels.assign(scores.double()) is None
    assert kernels.assign(scores.to("meta")) is None
    assert kernels.assign(1e-38 * scores) is None


@needs_library
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_other_types_and_layouts_give_what_float32_gives(dtype):
    scores = make(random_scores, 100, 8).to(dtype)
    expert = kernels.assign(scores).expert_T
    assert expert.tolist() == kernels.assign(scores.float()).expert_T.tolist()
    assert expert.tolist() == kernels.assign(scores.t().contiguous().t()).expert_T.tolist()


@needs_library
def test_the_same_scores_give_the_same_answer_in_many_threads():
    scores = [make(kind, 3000, 24) for kind in KINDS]
    expected = [kernels.assign(s).expert_T.tolist() for s in scores]
    found = [None] * len(scores)

    def work(index):
        found[index] = kernels.assign(scores[index]).expert_T.tolist()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(scores))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def one_for_all(tokens, experts):
    return (torch.arange(experts) == 0).float().repeat(tokens, 1)


def same_row(tokens, experts):
    return make(random_scores, 1, experts).repeat(tokens, 1)


def few_rows(tokens, experts):
    return make(random_scores, 10, experts).repeat(tokens // 10 + 1, 1)[:tokens]


def one_direction(tokens, experts):
    """The slowest kind known: in the best assignment every expert has two neighbours to exchange tokens with."""
    return make(random_scores, tokens, 1) @ make(random_scores, 1, experts, seed=2)


def one_token_aside(tokens, experts):
    return torch.cat([1e-6 * make(random_scores, tokens - 1, experts), 1e6 * make(random_scores, 1, experts)])


@cache
def best_of_bad_case(kind):
    """Torch is the judge, scipy would take minutes."""
    scores = kind(8000, 48)
    return total(scores, stepwise_assignment(scores, exact=True).expert_T)


@needs_library
@pytest.mark.parametrize("kind", [one_for_all, same_row, few_rows, one_direction, one_token_aside])
def test_bad_cases_end(kind):
    scores = kind(8000, 48)
    expert = kernels.assign(scores).expert_T
    assert_fair(expert, 8000, 48)
    assert gap(scores, expert, best_of_bad_case(kind)) <= EXACT_GAP


@needs_library
def test_places_for_one_token_more_go_where_they_are_worth_most():
    """Choosing them by price alone would be worse: all tokens of an expert may be indifferent."""
    for seed in range(20):
        scores = make(tied, 23, 9, seed)
        assert total(scores, kernels.assign(scores).expert_T) == pytest.approx(optimum(scores))
