"""How runs in several processes begin: by fairseq's own command, in the processes that it is started in."""

import subprocess
import sys
import time

import pytest

from tests.helpers.commands import BIN, REPOSITORY, train, training_arguments
from tests.helpers.processes import run_processes

OPTIONS = ("--max-tokens", 120, "--max-update", 2, "--no-save")
SECONDS = 1  # of `--distributed-timeout` where nobody comes


def join(rank, data, folder, world_size, *differing):
    """`fairseq-train` as one of the processes that meet at a file: its error's sentence, and seconds until it came."""
    from fairseq_cli import train as command

    joined = ("--distributed-init-method", f"file://{folder}/meeting", "--distributed-rank", rank,
              "--distributed-world-size", world_size)  # fmt: skip
    sys.argv[1:] = map(str, training_arguments(data, folder, *OPTIONS, *joined, *differing[rank]))
    begin = time.monotonic()
    with pytest.raises(ValueError) as caught:
        command.cli_main()
    return f"{type(caught.value).__name__}: {caught.value}", time.monotonic() - begin


def test_options_that_differ_are_named_at_once(corpus, tmp_path):
    given = ("--dense-updates", 4), ("--dense-updates", 8)
    found = run_processes(join, 2, corpus, tmp_path, 2, *given, joined=False)
    sentence = "`--dense-updates` must be the same in all processes, but is 4 in process 0 and 8 in process 1."
    assert [said for said, _ in found] == [f"UserError: {sentence}"] * 2


def test_a_process_that_is_not_started_is_missed(corpus, tmp_path):
    ((said, took),) = run_processes(join, 1, corpus, tmp_path, 2, ("--distributed-timeout", SECONDS), joined=False)
    assert f"waited for process 1, which did not start within {SECONDS} seconds (`--distributed-timeout`)" in said
    assert took >= SECONDS


def test_under_torchrun_the_sentence_is_in_its_report(corpus, tmp_path):
    arguments = training_arguments(corpus, tmp_path, *OPTIONS, "--restore-file", tmp_path / "none.pt")
    command = [BIN / "torchrun", "--standalone", "--nproc-per-node", 2, BIN / "fairseq-train", *arguments]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=REPOSITORY)
    sentence = f"`{tmp_path}/none.pt` must be a checkpoint to continue from (`--restore-file`), but there is none."
    assert result.returncode == 1
    assert f"error: {sentence}" in result.stderr
    report = result.stderr.partition("ChildFailedError")[2]
    assert sentence in report and "fairseq_mtmoe/training" not in report


def test_one_command_starts_processes_on_cpus(corpus, tmp_path):
    train(corpus, tmp_path, "--num-experts", 4, "--distributed-world-size", 2, "--max-tokens", 120,
                  "--max-update", 2)  # fmt: skip
    assert sorted(path.name for path in tmp_path.glob("checkpoint_last.experts/*/*")) == ["0-1.pt", "2-3.pt"]
