"""The assignment benchmark: gaps, libbase's answers as ours, and endless ones."""

import pytest
import torch
from assignment_scores import random_scores

SCRIPT = "bench_assignment"


@pytest.mark.parametrize("kind", ["isotropic", "skewed"])
def test_all_answers_are_near_the_optimum(bench, kind):
    torch.manual_seed(1)
    scores = [random_scores(kind, 256, 8)]
    start_N = bench.mean_price(kind, 256, 8)
    ours, from_prices, theirs = (
        bench.gaps_of(assign, scores)[0]
        for assign in (bench.assigned, lambda scores_TN: bench.assigned(scores_TN, start_N), bench.libbase_assigned)
    )
    assert max(abs(ours), abs(from_prices)) < 1e-6
    assert -1e-6 <= theirs < 0.01


@pytest.mark.scheduled
def test_what_does_not_end_is_stopped(bench):
    scores = [random_scores("isotropic", 64, 4)]
    assert bench.libbase_ends(scores)
    assert not bench.libbase_ends(scores, limit=0.01)
