"""A few kills like those of `make test-kill`, and its own tools: they see what they are there to see."""

import math
import os
import sys

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io
from tests.kill.moments import ALL, COPY_LAST, PLACES, Case, Moment, drawn, replace
from tests.kill.runs import Outcome, References, compare, difference, is_equal
from tests.kill.victim import HalfWritten, arm

SAVE = Case("a save", (replace(COPY_LAST, call=2),))
NUMBERS_OF_KILLS = {1: 36, 2: 12}  # by number of processes


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    return References(tmp_path_factory.mktemp("references"))


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_parameters(references, tmp_path):
    assert references.killed(SAVE, tmp_path / "run") == Outcome(difference=0.0, leftovers=())


@pytest.mark.rare
@pytest.mark.parametrize("processes", NUMBERS_OF_KILLS)
def test_kills_in_all_phases_lose_nothing(processes, references, tmp_path):
    cases = drawn([case for case in ALL if case.processes == processes], 1, references.calls)
    assert sum(len(case.moments) for case in cases) == NUMBERS_OF_KILLS[processes]
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


def test_differences_and_files_too_many_and_too_few_are_seen(tmp_path):
    runs = tmp_path / "uninterrupted", tmp_path / "resumed"
    for folder in runs:
        for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
            file_io.save(checkpoint(), str(folder / name))
    assert compare(*runs) == Outcome(0.0, ())
    other = checkpoint()
    other["model"]["weight"][0] = 3.0
    file_io.save(other, str(runs[1] / "checkpoint_best.pt"))
    assert compare(*runs) == Outcome(3.0, ())
    (runs[1] / ".checkpoint_last.5.pt").touch()
    (runs[1] / "checkpoint_last.experts" / "1").mkdir(parents=True)
    (runs[1] / "checkpoint_last.experts" / "1" / "0-1.pt").touch()
    (runs[1] / "checkpoint_best.pt").rename(runs[1] / "checkpoint_1_8.pt")
    expected = (".checkpoint_last.5.pt", "checkpoint_1_8.pt", "checkpoint_last.experts/1/0-1.pt", "-checkpoint_best.pt")
    assert compare(*runs) == Outcome(0.0, expected)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda c: c["model"]["weight"].add_(1e-3), 1e-3),
        (lambda c: c["last_optimizer_state"]["state"][0]["exp_avg"].add_(0.5), 0.5),
        (lambda c: c["extra_state"].update(best=1.5), 0.25),
        (lambda c: c["extra_state"].update(wall=9.0), 0),
        (lambda c: c["optimizer_history"].insert(0, {}), 0),
        (lambda c: c["model"].update(more=torch.ones(1)), math.nan),
        (lambda c: c["model"].update(weight=torch.ones(1)), math.nan),
        (lambda c: c["model"]["weight"].mul_(math.nan), math.nan),
        (lambda c: c["extra_state"]["train_iterator"].update(batches_in_epoch=7), math.nan),
        (lambda c: c["last_optimizer_state"]["state"][0].update(step=4), math.nan),
        (lambda c: c["optimizer_history"][-1].update(num_updates=6), math.nan),
    ],
)
def test_every_difference_is_seen(change, found):
    other = checkpoint()
    change(other)
    assert difference(checkpoint(), other) == pytest.approx(found, rel=1e-3, nan_ok=True)


def test_one_process_must_be_equal_bit_for_bit():
    one, two = Case("an epoch", ()), Case("an epoch", (), processes=2, resumed_by=2)
    assert is_equal(two, Outcome(1e-7, ())) and not is_equal(two, Outcome(1e-5, ()))
    assert not is_equal(one, Outcome(1e-9, ())) and not is_equal(one, Outcome(0.0, ("x",)))


def test_a_seed_draws_the_cases():
    cases, again, others = (drawn(ALL, seed, lambda case: dict.fromkeys(PLACES, 9)) for seed in (1, 1, 2))
    moments = [moment for case in cases for moment in case.moments]
    assert len(cases) == len({(case.data, case.processes, case.moments) for case in cases}) == 41
    assert all(1 <= moment.call <= 9 or moment.call in (32, 33, 60) for moment in moments)
    assert cases == again and cases != others


@pytest.fixture
def mortal(monkeypatch):
    monkeypatch.setattr("tests.kill.victim.kill", sys.exit)


@pytest.mark.parametrize(("when", "there"), [("before", False), ("after", True)])
def test_the_chosen_call_kills(when, there, mortal, monkeypatch, tmp_path):
    monkeypatch.setattr("os.replace", os.replace)  # put back at the end
    calls = arm(["os:replace|wanted"], Moment("os:replace", "wanted", when, 2))
    file = tmp_path / "file"
    for name in ("other", "wanted1"):
        file.touch()
        os.replace(file, tmp_path / name)
    assert calls["os:replace|wanted"] == 1
    file.touch()
    with pytest.raises(SystemExit):
        os.replace(file, tmp_path / "wanted2")
    assert (tmp_path / "wanted2").exists() == there


def test_a_file_is_left_half_written(mortal, tmp_path):
    with open(tmp_path / "file", "wb") as file:
        half = HalfWritten(file, 5)
        assert half.write(b"abc") == 3
        with pytest.raises(SystemExit):
            half.write(b"defgh")
        assert (tmp_path / "file").read_bytes() == b"abcde"
