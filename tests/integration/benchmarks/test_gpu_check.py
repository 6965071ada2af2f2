"""The GPU check: every part at toy sizes, on a CPU and on a pretended GPU."""

import importlib
import json

import pytest
from gpu_check import __main__ as main
from gpu_check.rows import Setting
from gpu_check.run_part import rows_of

from fairseq_mtmoe.moe import ExpertBank
from tests.helpers.pretended_gpu import pretended_gpu
from tests.helpers.scheduled import rarely


def outcomes(part, device):
    """The rows of a part by outcome, in this process."""
    by_outcome = {}
    for check in importlib.import_module(f"gpu_check.{part}").checks(Setting(device, toy=True)):
        for row in rows_of(check):
            by_outcome.setdefault(row.outcome, []).append(row)
    return by_outcome


@pytest.mark.parametrize("part", rarely(("layer", "assignment", "step", "decode"), "step", "decode"))
def test_parts_run_where_mixing_devices_fails(part):
    importlib.import_module("fairseq.trainer")  # it would keep pretended functions
    with pretended_gpu():
        rows = outcomes(part, "cuda")
    assert "failed" not in rows, rows["failed"]


@pytest.mark.scheduled
def test_several_processes_are_one_on_a_cpu():
    rows = outcomes("processes", "cpu")
    assert "failed" not in rows and rows["passed"], rows


def test_layers_whose_experts_are_wrong_are_not_timed(monkeypatch):
    forward = ExpertBank.forward
    monkeypatch.setattr(ExpertBank, "forward", lambda *args: forward(*args) * 1.1)
    rows = outcomes("layer", "cpu")
    assert [*rows] == ["failed"] and "not close" in rows["failed"][0].note


# Stands for a part, in a process of its own: the second check's process dies.
MADE_UP = """
import os
from gpu_check.rows import Check, passed

def dies():
    os._exit(9)

def checks(setting):
    return [Check("one", lambda: [passed("one")]), Check("dies", dies)]
"""


def test_a_process_that_dies_costs_the_rest_of_its_part(tmp_path, monkeypatch, capsys):
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "made_up.py").write_text(MADE_UP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(main, "PACKAGE", "parts")
    monkeypatch.setattr(main, "PARTS", {"made_up": (1, ()), "lacking": (1, ("no_such",))})
    assert main.main(["--toy", "--folder", str(tmp_path / "run")]) == 1
    table = (tmp_path / "run" / "gpu.md").read_text()
    assert "1 failed, 1 passed, 1 skipped" in table and "1 failed, 1 passed, 1 skipped" in capsys.readouterr().out
    assert "status 9" in table and "no_such cannot be imported" in table
    assert [row["what"] for row in json.loads((tmp_path / "run" / "made_up.json").read_text())] == ["one"]


def test_a_machine_without_a_gpu_is_refused(capsys):
    assert main.main([]) == 1  # this machine's GPUs are hidden from tests
    assert "needs a GPU, but torch" in capsys.readouterr().err
