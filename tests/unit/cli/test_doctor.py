"""`mtmoe doctor` shows every line, whatever is missing or broken, and says how to get it."""

import os
import subprocess
import sys

from fairseq_mtmoe.cli import doctor
from fairseq_mtmoe.moe.assignment import kernels
from tests.helpers.commands import REPOSITORY
from tests.helpers.invoked import mtmoe


def test_torch_that_is_broken_and_fairseq_that_is_missing(tmp_path):
    output = mtmoe("doctor")
    assert "✗" not in output and [name for name in doctor.CHECKS if name not in output] == []
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.13: cannot open\\nand more')\n")
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['fairseq'] = None\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    program = "from fairseq_mtmoe.cli.main import main; main()"
    run = subprocess.run([sys.executable, "-c", program, "doctor"], capture_output=True, text=True, env=environment)
    lines = run.stdout.splitlines()
    assert run.returncode == 1 and run.stderr == ""
    broken = {line.split()[1]: number for number, line in enumerate(lines) if line.startswith("✗")}
    assert list(broken) == ["torch", "fairseq", "fairseq_mtmoe"]
    message, advice = lines[broken["torch"] :][:2]
    assert "OSError: libcudart.so.13: cannot open" in message and "pip install torch" in advice
    assert sum(line[:1] in "✓–✗" for line in lines) == len(doctor.CHECKS)


def test_kernels_that_are_missing_are_slow_and_no_more(monkeypatch):
    monkeypatch.setattr(kernels, "BUILDS", {})
    assert "–  compiled kernels" in mtmoe("doctor")


def test_the_memory_that_a_job_may_use(tmp_path):
    job = tmp_path / "fs" / "slurm" / "job_7"
    job.mkdir(parents=True)
    (job / "memory.max").write_text("max\n")
    (job.parent / "memory.max").write_text("8589934592\n")
    (tmp_path / "cgroup").write_text("1:cpu:/other\n0::/slurm/job_7\n")
    assert doctor.memory_limits(tmp_path / "cgroup", tmp_path / "fs") == [8 * doctor.GIB]
