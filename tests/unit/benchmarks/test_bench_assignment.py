"""The assignment benchmark: gaps, answers of others in our form, endless ones, and scores from a model that trains."""

import time

import assignment_starts
import pytest
import real_scores
import torch
from assignment_scores import gap, random_scores, upper_bound

from fairseq_mtmoe.moe import priced_assignment

SCRIPT = "assignment_cases"


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    torch.manual_seed(1)
    for name, value in (("STEPS", 20), ("CALM_STEPS", 1), ("BATCH", 2)):
        monkeypatch.setattr(f"real_scores.{name}", value)


def test_gap_is_what_is_lost_over_the_ranges():
    scores_TN = torch.tensor([[3.0, 1.0], [2.0, 1.0]])
    best_T, other_T = torch.tensor([0, 1]), torch.tensor([1, 0])
    assert gap(best_T, 4.0, scores_TN) == 0
    assert gap(other_T, 4.0, scores_TN) == pytest.approx(1 / 3)
    with pytest.raises(AssertionError):
        gap(torch.tensor([0, 0]), 4.0, scores_TN)


@pytest.mark.parametrize("kind", ["isotropic", "skewed"])
def test_all_answers_are_near_the_optimum(bench, kind):
    scores_TN = random_scores(kind, 256, 8)
    optimal_T = bench.scipy_assignment(scores_TN)
    assignment = priced_assignment(scores_TN)
    optimum = scores_TN.double()[torch.arange(256), optimal_T].sum().item()
    assert upper_bound(scores_TN, assignment.price_N) == pytest.approx(optimum)
    assert abs(gap(assignment.expert_T, optimum, scores_TN)) < 1e-6
    theirs_T = bench.experts_of(bench.libbase_assignment()(scores_TN), 8)
    assert 0 <= gap(theirs_T, optimum, scores_TN) < 0.01


def _sleep(connection):
    connection.send("ready")
    while True:
        time.sleep(float(connection.recv()[0, 0]))
        connection.send("done")


@pytest.mark.rare
def test_what_does_not_end_is_stopped(bench, monkeypatch):
    monkeypatch.setattr(bench, "_serve", _sleep)
    libbase = bench.Libbase(limit=2)
    assert libbase.ends(torch.zeros(1, 1))
    assert not libbase.ends(torch.full((1, 1), 60.0))
    assert libbase.ends(torch.zeros(1, 1))  # in a new process
    libbase.close()


def test_real_scores_come_from_a_model_that_learns():
    trained = real_scores.RealScores(4)
    first_TN, second_TN = trained.scores(256, 2)
    assert first_TN.shape == second_TN.shape == (256, 4)
    assert not torch.equal(first_TN, second_TN) and len(trained.losses) == 22
    assert trained.losses[-1] < trained.losses[0] - 1


def test_starts_are_prices_of_the_steps_before(monkeypatch):
    monkeypatch.setattr(real_scores, "STEPS", 1)
    monkeypatch.setattr(assignment_starts, "HISTORY", 2)
    number = assignment_starts.HISTORY + assignment_starts.MEASURED
    steps = assignment_starts.steps_of(real_scores.RealScores(4, calm=True).scores(256, number))
    assert len(steps) == assignment_starts.MEASURED
    first, second = steps[:2]
    last_N = priced_assignment(first.scores_TN).price_N
    assert torch.equal(second.starts["last"], last_N)
    mean_N = (0.95 * first.starts["mean"] * 1.95 + last_N) / (0.95 * 1.95 + 1)
    torch.testing.assert_close(second.starts["mean"], mean_N)
    assert assignment_starts.gpu_gap(first) <= 1e-2
