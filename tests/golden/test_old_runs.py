"""Later versions go on with the files of 0.1.0 as if nothing had happened (see old_runs.py)."""

import json
import shutil

import pytest
from click.testing import CliRunner

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.cli.main import commands
from tests.golden.old_runs import END, OLD, PREPARE, RUNS, SAVED, run


@pytest.mark.parametrize("name", RUNS)
def test_a_run_goes_on_as_it_would_have(name, tmp_path):
    frozen = json.loads((OLD / "results.json").read_text())[name]
    shutil.copytree(OLD / name, tmp_path / "run")
    options = () if name == "dense" else ("--base-evaluation", "greedy")  # as it was the only way
    found = run(name, OLD / "data", tmp_path / "run", *options)
    assert len(frozen["norms"]) == END - SAVED
    assert found["norms"] == pytest.approx(frozen["norms"], rel=1e-4)
    assert found["validation"] == pytest.approx(frozen["validation"], abs=2e-3)


def mtmoe(*arguments):
    result = CliRunner().invoke(commands, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_checkpoints_of_both_kinds_are_evaluated(tmp_path):
    for name in ("sparse", "parts"):
        shutil.copytree(OLD / name, tmp_path / name)
        shown = mtmoe("evaluate", OLD / "data", "--path", tmp_path / name / "checkpoint_last.pt", "--cpu",
                      "--out", tmp_path / "scores" / name)  # fmt: skip
        assert shown.count("en-") >= 3


def test_a_run_log_is_drawn(tmp_path):
    shutil.copytree(OLD / "sparse", tmp_path / "run")
    mtmoe("plot", tmp_path / "run", "--out", tmp_path / "plots")
    drawn = {path.name for path in (tmp_path / "plots").iterdir()}
    assert drawn == {"sampling.png", "experts.png", "perplexity.png", "gates.png"}  # it has a gate for each language


def test_checkpoints_become_others(tmp_path):
    mtmoe("upcycle", OLD / "dense" / "checkpoint_last.pt", tmp_path / "sparse.pt", "--num-experts", 2)
    mtmoe("reshard", OLD / "parts" / "checkpoint_last.pt", tmp_path / "whole.pt", "--single-file")
    mtmoe("average", "--inputs", OLD / "sparse" / "checkpoint_last.pt", "--output", tmp_path / "average.pt")
    for name in ("sparse", "whole", "average"):
        state = file_io.load(str(tmp_path / f"{name}.pt"))["model"]
        assert any(".experts." in key for key in state)


def test_a_prepared_directory_is_up_to_date(tmp_path):
    shutil.copytree(OLD / "prepared", tmp_path / "prepared")
    assert "is up to date" in mtmoe(*PREPARE[:3], tmp_path / "prepared", *PREPARE[3:])
