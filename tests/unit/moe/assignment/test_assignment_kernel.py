"""The compiled assignment: what it leaves to torch, threads, and that it always ends."""

import threading
from functools import cache

import pytest
import torch

from fairseq_mtmoe.moe.assignment import kernels
from fairseq_mtmoe.moe.assignment.stepwise import stepwise_assignment
from tests.unit.moe.assignment.made_scores import EXACT_GAP, KINDS, assert_fair, gap, make, random_scores, total

needs_library = pytest.mark.skipif(not kernels.BUILDS, reason="the library is not built")


@pytest.fixture(scope="module", params=[*kernels.BUILDS] or ["none"], autouse=True)
def build(request):
    """Every test here is about every build that this machine can run."""
    with pytest.MonkeyPatch.context() as context:
        context.setattr(kernels, "BUILDS", {k: v for k, v in kernels.BUILDS.items() if k == request.param})
        yield


@needs_library
def test_an_offset_per_token_changes_nothing():
    """In units of the spread it is infinite."""
    scores = torch.cat([torch.full((150, 8), 1e30), 1e-20 * make(random_scores, 150, 8)])
    expert = kernels.assign(scores).expert_T
    assert_fair(expert, 300, 8)
    assert gap(scores, expert) <= EXACT_GAP


@needs_library
@pytest.mark.parametrize("odd", [torch.nan, torch.inf, -torch.inf, 2e30, -2e30])
def test_what_is_left_to_torch(odd):
    scores = make(random_scores, 100, 8)
    for other in (scores.double(), scores.to("meta"), 1e-38 * scores):
        assert kernels.assign(other) is None
    for place in ((0, 0), (57, 3), (99, 7)):
        changed = scores.clone()
        changed[place] = odd
        assert kernels.assign(changed) is None


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
