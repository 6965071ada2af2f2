"""`mtmoe doctor` shows every line, whatever is missing or broken, and says how to get it."""

import os
import subprocess
import sys

from fairseq_mtmoe.cli import doctor
from fairseq_mtmoe.moe.assignment import kernels
from tests.helpers.commands import REPOSITORY
from tests.helpers.invoked import mtmoe


def test_one_screen_where_all_is_there():
    shown = mtmoe("doctor")
    assert len(shown.splitlines()) <= 24 and "✗" not in shown and "fairseq-fixed 0.12" in shown
    assert [check.name for check in doctor.CHECKS if check.name not in shown] == []


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
    said, advice = lines[broken["torch"] :][:2]
    assert said.endswith("OSError: libcudart.so.13: cannot open") and "pip install torch" in advice
    assert sum(line[:1] in "✓–✗" for line in lines) == len(doctor.CHECKS)


def test_kernels_that_are_missing_are_slow_and_no_more_and_packages_are_named(monkeypatch):
    monkeypatch.setattr(kernels, "BUILDS", {})
    monkeypatch.setattr(doctor, "CHECKS", [check for check in doctor.CHECKS if check.name == "compiled kernels"])
    shown = mtmoe("doctor")
    assert "–  compiled kernels" in shown and "ten times as long" in shown
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda _: ["polib>=1.2", "nobody-has-this; x == 'y'"])
    assert doctor.look_at_packages().advice == "missing: nobody-has-this; `pip install nobody-has-this`"
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "ipadic" else name)
    found = doctor.look_at_optional_packages()
    assert "Japanese" not in found.text and 'pip install "sacrebleu[ja]"' in found.advice


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
