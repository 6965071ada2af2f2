"""The GPU check: every part at toy sizes, on a CPU and on a pretended GPU; what is interrupted goes on."""

import importlib
from unittest.mock import MagicMock, patch

import pytest
import torch
from gpu_check import __main__ as main
from gpu_check import driver, parts
from gpu_check.rows import Setting
from gpu_check.run_part import attempt
from gpu_check.unit_tests import rows_of

from fairseq_mtmoe.moe import ExpertBank
from tests.helpers import commands
from tests.helpers.pretended_gpu import pretended_gpu
from tests.helpers.rare import rarely


@pytest.fixture
def outcomes(tmp_path):
    """What the checks of a part find, by outcome; in this process."""

    def run(name, device):
        checks = importlib.import_module(f"gpu_check.{parts.PARTS[name].module}").checks
        found = {}
        for check in checks(Setting(device, True, tmp_path)):
            for row in attempt(check)[0]:
                found.setdefault(row.outcome, []).append(row)
        return found

    return run


PARTS = ("reference", "waits", "launches", "layer", "products", "assignment", "encoder", "step", "decode", "paper")


@pytest.mark.parametrize("name", rarely(PARTS, "reference", "encoder", "step", "decode", "paper"))
def test_parts_run_where_mixing_devices_fails(outcomes, name):
    import_what_keeps_functions()
    with pretended_gpu():
        found = outcomes(name, "cuda")
    assert "failed" not in found, found["failed"]
    # A pretended GPU has no Triton and no graphs.
    assert found.keys() <= {"passed", "measured"} or name in ("products", "launches")


@pytest.mark.rare
@pytest.mark.parametrize("name", ["compile", "processes"])
def test_parts_that_no_pretended_gpu_can_run_do_on_a_cpu(outcomes, name):
    found = outcomes(name, "cpu")
    assert "failed" not in found and found["passed"], found


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("is_stale", [False, True])
def test_a_graph_that_computes_nothing_new_is_found(training, is_stale, tmp_path, monkeypatch):
    """With stand-ins for torch's graphs, which a CPU does not have: a replay does the pass again, or nothing."""
    from gpu_check import launching
    from gpu_check.rows import PASSED

    captured = []

    class Graph:
        def replay(self):
            if not is_stale:
                batch.forget_gradients()
                captured[0].detach().copy_(work().detach())

    setting = Setting("cpu", False, tmp_path)
    batch = launching.in_training(setting, "task", training)
    work = batch.work
    monkeypatch.setattr(batch, "work", lambda: captured.append(work()) or captured[-1])
    monkeypatch.setattr(launching, "in_training", lambda *_: batch)
    monkeypatch.setattr(launching, "WARMUPS", 0)
    nothing = MagicMock()  # streams, and waiting for them
    for name in ("Stream", "current_stream", "stream", "graph", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, nothing)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    if is_stale:
        with pytest.raises(AssertionError, match="output differs"):
            launching.graph_is_right(setting, "graph", "task", training)
    else:
        assert launching.graph_is_right(setting, "graph", "task", training)[0].outcome == PASSED


def import_what_keeps_functions():
    """Not with pretended ones, which they would see when they are imported."""
    for module in ("fairseq.trainer", "torch._dynamo", "transformers.models.bert.modeling_bert"):
        importlib.import_module(module)


def forked(module, arguments, hides_gpu):
    """In the place of `run_command`, without the seconds of importing fairseq."""
    done = commands.run(module.replace("_cli.", "-"), *arguments)
    return done.stdout + done.stderr


@pytest.mark.rare
def test_training_and_tasks_are_compared_with_a_cpus_runs(outcomes, monkeypatch):
    """Of tasks also updates of all models on a pretended GPU; the commands on a CPU."""
    from gpu_check import glue, training

    for module in (training, glue):
        monkeypatch.setattr(module, "run_command", forked)
    assert {outcome: len(rows) for outcome, rows in outcomes("training", "cpu").items()} == {"passed": 4}
    import_what_keeps_functions()
    with monkeypatch.context() as patch, pretended_gpu():
        patch.setattr(glue, "checks", lambda setting, checks=glue.checks: list(checks(setting))[:1])
        found = outcomes("glue", "cuda")
    assert found.keys() == {"measured"} and len(found["measured"]) == 9, found  # speed, waits and memory of three
    found = outcomes("glue", "cpu")
    assert "failed" not in found and len(found["passed"]) == 3, found


@pytest.mark.slow
def test_unit_tests_of_the_layers_run_on_the_device(outcomes):
    found = outcomes("tests", "cpu")
    assert found.keys() == {"passed"} and "tests passed, 0 failed" in found["passed"][0].note


def test_unit_tests_that_fail_have_rows_of_their_own(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><skipped/></testcase>'
        '<testcase name="c"><failure message="it is\n not 1">…</failure></testcase></testsuite></testsuites>'
    )
    whole, one = rows_of("test_x.py", report)
    assert whole.outcome == one.outcome == "failed"
    assert whole.note == "1 tests passed, 1 failed, 1 are not for this device"
    assert (one.what, one.note) == ("test_x.py: c", "it is not 1")


def test_a_difference_is_found(outcomes, monkeypatch):
    """The check of a layer whose experts are wrong fails, and says in what."""
    forward = ExpertBank.forward
    monkeypatch.setattr(ExpertBank, "forward", lambda *args: forward(*args) * 1.1)
    failed = outcomes("reference", "cpu")["failed"]
    assert len(failed) >= 9 and "differs by" in failed[0].note


# ---- the command ----


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """Run the command with parts of this test's own; its status, and what it said."""
    (tmp_path / "made_up.py").write_text(MADE_UP)
    made_up = {"first": parts.Part("made_up", "First", 1), "second": parts.Part("made_up", "Second", 1, ("no_such",))}
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(driver, "MODULE", "made_up")

    def run(*arguments):
        status = main.main([*arguments, "--device", "cpu", "--sizes", "toy", "--folder", str(tmp_path / "run")])
        said = capfd.readouterr()
        return status, said.out + said.err

    with patch.dict(parts.PARTS, made_up, clear=True):
        yield run


# Stands for `run_part.py`, with checks that need no torch: the second one's process dies at the first try.
MADE_UP = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from gpu_check.record import Record
from gpu_check.rows import Check, Row, Setting, passed
from gpu_check import run_part

folder = Path(sys.argv[-1])

def run(name):
    with (folder / f"{name}.runs").open("a") as file:
        file.write("x")
    if name == "dies":
        print("out of memory", file=sys.stderr)
        os._exit(9)
    return [passed(name)]

run_part.importlib = SimpleNamespace(import_module=lambda name: SimpleNamespace(checks=lambda setting: [
    Check(name, lambda name=name: run(name)) for name in ("one", "dies", "last")]))
run_part.PARTS["first"] = SimpleNamespace(module="", title="")
sys.exit(run_part.main(*sys.argv[1:]))
"""


@pytest.mark.rare
def test_a_process_that_dies_costs_one_check_and_a_second_start_repeats_that_alone(command, tmp_path):
    status, said = command()
    table = (tmp_path / "run" / "gpu.md").read_text()
    for words in ("process ended with status 9: out of memory", "because no_such cannot be imported here",
                  "2 passed, 1 failed, 0 measured, 0 skipped"):  # fmt: skip
        assert words in said
    assert "| dies" in table and "status 9" in table and "no_such" in table
    assert status == command()[0] == 1
    runs = {path.stem: len(path.read_text()) for path in (tmp_path / "run").glob("*.runs")}
    assert runs == {"one": 1, "dies": 2, "last": 1}
    assert "out of memory" in (tmp_path / "run" / "log.txt").read_text()


def test_what_cannot_be_run_is_said_in_a_sentence(capfd):
    assert main.main(["lair"]) == 1
    assert capfd.readouterr().err.startswith("`PART` must be one of reference, waits, ")
    assert main.main([]) == 1  # this machine's GPUs are hidden from tests
    assert "needs a GPU, but torch" in capfd.readouterr().err
    assert main.main(["--minutes", "0", "--device", "cpu", "--sizes", "toy", "--folder", "/dev/null/x"]) == 1
    assert capfd.readouterr().err.startswith("`--folder` must be a folder to write to, but /dev/null/x is not")
