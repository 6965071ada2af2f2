"""`mtmoe doctor` shows every line, whatever is missing or broken, and says how to get it."""

import os
import subprocess
import sys

from fairseq_mtmoe.cli import doctor
from fairseq_mtmoe.moe.assignment import kernels
from tests.helpers.commands import REPOSITORY
from tests.helpers.invoked import mtmoe


def test_one_screen_where_all_is_there():
    output = mtmoe("doctor")
    assert len(output.splitlines()) <= 24 and "✗" not in output and "0.12.3" in output
    assert [check.name for check in doctor.CHECKS if check.name not in output] == []


def test_torch_that_is_broken_and_fairseq_that_is_missing(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open\\nand more')\n")
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['fairseq'] = None\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    program = "from fairseq_mtmoe.cli.main import main; main()"
    run = subprocess.run([sys.executable, "-c", program, "doctor"], capture_output=True, text=True, env=environment)
    lines = [line.rstrip() for line in run.stdout.splitlines()]
    assert run.returncode == 1 and run.stderr == ""
    broken = {line.split()[1]: number for number, line in enumerate(lines) if line.startswith("✗")}
    assert list(broken) == ["torch", "fairseq", "fairseq_mtmoe"]
    message, advice = lines[broken["torch"] :][:2]
    assert message.endswith("OSError: libcudart.so.13: cannot open") and "pip install torch" in advice
    assert sum(line[:1] in "✓–✗" for line in lines) == len(doctor.CHECKS)


def test_kernels_that_are_missing_are_slow_and_no_more_and_packages_are_named(monkeypatch):
    monkeypatch.setattr(kernels, "BUILDS", {})
    lines = ["polib>=1.2", "missing-one; python_version < '3'", "missing-two", "missing-three; extra == 'nlu'"]
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda _: lines)
    names = ("compiled kernels", "optional packages")
    monkeypatch.setattr(doctor, "CHECKS", [check for check in doctor.CHECKS if check.name in names])
    output = mtmoe("doctor")
    assert "–  compiled kernels" in output and "ten times as long" in output
    assert "pip install 'fairseq_mtmoe[nlu]'" in output
    assert doctor.missing_packages() == ["missing-two"]


def test_the_memory_that_a_job_may_use(tmp_path):
    job = tmp_path / "fs" / "slurm" / "job_7"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("max\n")
    (job.parent / "memory.max").write_text("8589934592\n")
    (tmp_path / "cgroup").write_text("1:cpu:/other\n0::/slurm/job_7\n")
    assert doctor.memory_limits(tmp_path / "cgroup", tmp_path / "fs") == [8 * doctor.GIB]
    (tmp_path / "memory.max").write_text("1\n")  # above the tree of control groups
    (tmp_path / "cgroup").write_text("")
    assert doctor.memory_limits(tmp_path / "cgroup", tmp_path / "fs") == []
