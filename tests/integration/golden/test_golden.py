"""Frozen results (see freeze.py), and runs of 0.2.0, which later versions resume (see runs.py)."""

import json
import shutil

import pytest

from fairseq_mtmoe.checkpoints import file_io
from tests.golden.freeze import TRAJECTORY, TRANSLATIONS, losses, translations
from tests.golden.runs import END, FROZEN, PROCESSES, RUNS, SAVED
from tests.helpers.invoked import mtmoe
from tests.helpers.processes import run_processes
from tests.helpers.training import train_here


def test_a_run_follows_its_frozen_losses(many_digits, tmp_path):
    frozen = json.loads(TRAJECTORY.read_text())
    assert len(frozen) >= 10
    assert losses(many_digits, tmp_path) == pytest.approx(frozen, rel=2e-3)


def test_an_old_checkpoint_translates_as_it_did(many_digits):
    assert translations(many_digits) == json.loads(TRANSLATIONS.read_text())


def train_as(rank, *arguments):
    return train_here(*arguments)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_as_it_would_have(name, tmp_path):
    frozen = json.loads((FROZEN / "results.json").read_text())[name]
    shutil.copytree(FROZEN / name, tmp_path / "run")
    found = run_processes(train_as, PROCESSES[name], FROZEN / "data", tmp_path / "run", *RUNS[name])[0]
    assert len(found["norms"]) == END - SAVED
    assert found["norms"] == pytest.approx(frozen["norms"], rel=1e-4)
    assert found["validations"][-1][0] == pytest.approx(frozen["validation"], abs=2e-3)


def test_checkpoints_of_both_kinds_are_evaluated_and_become_others(tmp_path):
    folders = (shutil.copytree(FROZEN / name, tmp_path / name) for name in ("sparse", "parts"))
    sparse, parts = (folder / "checkpoint_last.pt" for folder in folders)
    for path in (sparse, parts):
        shown = mtmoe("evaluate", FROZEN / "data", "--path", path, "--cpu", "--out", path.parent / "scores")
        assert shown.count("en-") >= 3
    mtmoe("reshard", parts, tmp_path / "whole.pt", "--single-file")
    mtmoe("average", "--inputs", sparse, "--output", tmp_path / "average.pt")
    for name in ("whole.pt", "average.pt"):
        assert any(".experts." in key for key in file_io.load(str(tmp_path / name))["model"])
