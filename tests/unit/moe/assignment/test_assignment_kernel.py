"""The compiled assignment: what it leaves to torch, threads, and that it always ends."""

from concurrent.futures import ThreadPoolExecutor
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
    for at in ((0, 0), (57, 3), (99, 7)):
        changed = scores.clone()
        changed[at] = odd
        assert kernels.assign(changed) is None


@needs_library
def test_the_same_scores_give_the_same_answer_in_many_threads():
    scores = [make(kind, 3000, 24) for kind in KINDS]

    def assigned(scores_TN):
        return kernels.assign(scores_TN).expert_T.tolist()

    with ThreadPoolExecutor(len(scores)) as threads:
        assert list(threads.map(assigned, scores)) == list(map(assigned, scores))


BAD = {
    "one expert for all": lambda: (torch.arange(48) == 0).float().repeat(8000, 1),
    "one row": lambda: make(random_scores, 1, 48).repeat(8000, 1),
    "few rows": lambda: make(random_scores, 10, 48).repeat(800, 1),
    # The slowest kind known: in the best assignment every expert has two neighbours to exchange tokens with.
    "one direction": lambda: make(random_scores, 8000, 1) @ make(random_scores, 1, 48, seed=2),
    "one token aside": lambda: torch.cat([1e-6 * make(random_scores, 7999, 48), 1e6 * make(random_scores, 1, 48)]),
}


@cache
def best_of_bad_case(name):
    """Torch is the judge, scipy would take minutes."""
    scores = BAD[name]()
    return total(scores, stepwise_assignment(scores, exact=True).expert_T)


@needs_library
@pytest.mark.parametrize("name", BAD)
def test_bad_cases_end(name):
    scores = BAD[name]()
    expert = kernels.assign(scores).expert_T
    assert_fair(expert, 8000, 48)
    assert gap(scores, expert, best_of_bad_case(name)) <= EXACT_GAP
