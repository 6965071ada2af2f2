"""The assignment benchmark: gaps, libbase's answers as ours, and endless ones."""

import pytest
import torch
from assignment_scores import gap, random_scores

SCRIPT = "bench_assignment"


def test_gap_is_what_is_lost_over_the_ranges():
    scores_TN = torch.tensor([[3.0, 1.0], [2.0, 1.0]])
    best_T, other_T = torch.tensor([0, 1]), torch.tensor([1, 0])
    assert gap(best_T, 4.0, scores_TN) == 0
    assert gap(other_T, 4.0, scores_TN) == pytest.approx(1 / 3)
    with pytest.raises(AssertionError):
        gap(torch.tensor([0, 0]), 4.0, scores_TN)


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


@pytest.mark.rare
def test_what_does_not_end_is_stopped(bench):
    scores = [random_scores("isotropic", 64, 4)]
    assert bench.libbase_ends(scores)
    assert not bench.libbase_ends(scores, limit=0.01)
