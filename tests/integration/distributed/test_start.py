"""How runs in several processes begin: by torchrun, or in processes that the user starts."""

import subprocess
import sys

import pytest

from fairseq_mtmoe.core.errors import UserError
from tests.helpers.commands import BIN, REPOSITORY, training_arguments
from tests.helpers.processes import run_processes

OPTIONS = ("--max-tokens", 120, "--max-update", 2)


def join(rank, data, folder):
    """Run `fairseq-train` as the only one of two processes; return its error's sentence."""
    from fairseq_cli import train as command

    joined = ("--distributed-init-method", f"file://{folder}/meeting", "--distributed-rank", rank,
              "--distributed-world-size", 2, "--distributed-timeout", 1)  # fmt: skip
    sys.argv[1:] = map(str, training_arguments(data, folder, *OPTIONS, *joined))
    with pytest.raises(UserError) as caught:
        command.cli_main()
    return str(caught.value)


def test_a_process_that_is_not_started_is_missed(corpus, tmp_path):
    (sentence,) = run_processes(join, 1, corpus, tmp_path, joined=False)
    assert sentence.startswith(f"Process 0 of 2 could not join the others at file://{tmp_path}/meeting within")


def test_torchrun_starts_processes_on_cpus(corpus, tmp_path):
    arguments = training_arguments(corpus, tmp_path, *OPTIONS, "--num-experts", 4)
    command = [BIN / "torchrun", "--standalone", "--nproc-per-node", 2, BIN / "fairseq-train", *arguments]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=REPOSITORY)
    assert result.returncode == 0, result.stderr[-3000:]
    assert sorted(path.name for path in tmp_path.glob("checkpoint_last.experts/*/*")) == ["0-1.pt", "2-3.pt"]
