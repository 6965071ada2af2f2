"""Kills of a run; and the comparison of two runs sees every difference."""

import math

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io
from tests.kill.moments import ALL, COPY_LAST, Case, drawn, replace
from tests.kill.runs import Outcome, References, compare, difference, is_equal

SAVE = Case("a save", (replace(COPY_LAST, call=2),))


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    return References(tmp_path_factory.mktemp("references"))


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_parameters(references, tmp_path):
    assert references.killed(SAVE, tmp_path / "run") == Outcome(difference=0.0, leftovers=())


@pytest.mark.rare
@pytest.mark.parametrize("processes", [1, 2])
def test_kills_in_all_phases_lose_nothing(processes, references, tmp_path):
    cases = drawn([case for case in ALL if case.processes == processes], 1, references.calls)
    for number, case in enumerate(cases):
        outcome = references.killed(case, tmp_path / f"run{number}")
        assert is_equal(case, outcome), (case, outcome)


def checkpoint():
    moments = {"state": {0: {"exp_avg": torch.ones(2), "step": 5}}, "param_groups": [{"params": [0], "lr": 0.5}]}
    position = {"epoch": 2, "iterations_in_epoch": 3, "batches_in_epoch": 6, "shuffle": True}
    return {
        "model": {"weight": torch.arange(4.0)},
        "last_optimizer_state": moments,
        "extra_state": {"train_iterator": position, "val_loss": 1.5, "best": 1.25, "wall": 7.0},
        "optimizer_history": [{"num_updates": 5, "optimizer_name": "FairseqAdam"}],
    }


def test_files_too_many_and_too_few_are_seen(tmp_path):
    runs = tmp_path / "uninterrupted", tmp_path / "resumed"
    for folder in runs:
        for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
            file_io.save(checkpoint(), str(folder / name))
    assert compare(*runs) == Outcome(0.0, ())
    (runs[1] / "checkpoint_last.experts" / "1").mkdir(parents=True)
    (runs[1] / "checkpoint_last.experts" / "1" / "0-1.pt").touch()
    (runs[1] / "checkpoint_best.pt").rename(runs[1] / "checkpoint_1_8.pt")
    expected = ("checkpoint_1_8.pt", "checkpoint_last.experts/1/0-1.pt", "-checkpoint_best.pt")
    assert compare(*runs) == Outcome(0.0, expected)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda c: c["model"]["weight"].add_(0.5), 0.5),
        (lambda c: c["last_optimizer_state"]["state"][0]["exp_avg"].add_(0.5), 0.5),
        (lambda c: c["extra_state"].update(best=1.5), 0.25),
        (lambda c: c["extra_state"].update(wall=9.0), 0),
        (lambda c: c["model"].update(more=torch.ones(1)), math.nan),
        (lambda c: c["extra_state"]["train_iterator"].update(batches_in_epoch=7), math.nan),
    ],
)
def test_every_difference_is_seen(change, found):
    other = checkpoint()
    change(other)
    assert difference(checkpoint(), other) == pytest.approx(found, nan_ok=True)
