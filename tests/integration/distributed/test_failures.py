"""A process that fails, is killed or falls silent ends the others soon, with a sentence; and so does Ctrl-C."""

import os
import signal
import time
from contextlib import ExitStack

import pytest

from fairseq_mtmoe.checkpoints import assemble
from tests.helpers.commands import start_command, training_arguments
from tests.helpers.digits import make_digit_corpus

TIMEOUT = 10  # seconds of `--distributed-timeout`, which a busy machine may need to start both processes
PATIENCE = 10  # seconds that an end may take beyond it
SECONDS = 120  # many times what any wait takes on an idle machine

# Before fairseq-train in one of two processes: at the third call of a method of the trainer something happens, a
# statement, in the second process unless it asks.
BEFORE = """
import os, signal, time
import fairseq_mtmoe
fairseq_mtmoe.register()
from fairseq_mtmoe.training.trainer import SparseTrainer

rank, name, happening, folder = {values!r}
original, calls = getattr(SparseTrainer, name), []

def method(*args, **kwargs):
    calls.append(1)
    if len(calls) == 3 and (rank == 1 or "rank" in happening):
        open(folder + "/happened", "w").write(str(time.time()))
        exec(happening)
    return original(*args, **kwargs)

setattr(SparseTrainer, name, method)
"""


@pytest.mark.parametrize(
    ("happening", "method", "options"),
    [
        ("raise ValueError('a bug')", "train_step", ()),
        ("os.kill(os.getpid(), signal.SIGKILL)", "valid_step", ("--validate-interval-updates", 1)),
        pytest.param("time.sleep(1000)", "train_step", ("--dense-updates", 2), marks=pytest.mark.scheduled),
    ],
    ids=["raises in a step", "is killed in a validation", "is silent before sparsification"],
)
def test_the_other_process_ends_soon_and_says_why(happening, method, options, corpus, tmp_path):
    """Nothing says that gloo joins them, and what is logged may be another thing in each process."""
    with ExitStack() as running:
        processes = []
        for rank in range(2):
            joined = (
                "--distributed-world-size", 2, "--distributed-no-spawn", "--distributed-rank", rank, "--log-interval",
                7 - rank, "--distributed-init-method", f"file://{tmp_path}/meeting", "--max-tokens", 120,
                "--num-experts", 4, "--distributed-timeout", TIMEOUT, *options,
            )  # fmt: skip
            before = BEFORE.format(values=(rank, method, happening, str(tmp_path)))
            arguments = training_arguments(corpus, tmp_path, *joined)
            processes.append(running.enter_context(start_command("fairseq-train", *arguments, before=before)))
        code = processes[0].wait(90)
        took = time.time() - float((tmp_path / "happened").read_text())
        message = processes[0].err()
    assert code == 1 and "Traceback" not in message and took < TIMEOUT + PATIENCE, message
    last = message.strip().splitlines()[-1]
    assert "error: Process 0 of 2 lost another process" in last and "continue from checkpoint_last.pt" in last
    assert f"within {TIMEOUT} seconds" in last


def test_ctrl_c_reaches_all_processes_of_a_terminal_and_the_run_saves(tmp_path):
    """With a worker that loads data; tests/integration/cli/test_slurm.py has two processes."""
    corpus = make_digit_corpus(tmp_path / "digits", train=3000, valid=4, test=4)
    options = ("--num-experts", 2, "--max-tokens", 120, "--log-interval", 1, "--num-workers", 1)
    with start_command("fairseq-train", *training_arguments(corpus, tmp_path, *options)) as process:
        deadline = time.monotonic() + SECONDS
        while "num_updates=3," not in process.out():
            assert time.monotonic() < deadline, process.err()[-3000:]
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) == 130
        written = process.out() + process.err()
    path = tmp_path / "checkpoint_last.pt"
    updates = assemble.load_shared_part(path)["optimizer_history"][-1]["num_updates"]
    assert "Traceback" not in written and "rror:" not in written, written[-3000:]
    ended = f"SIGINT ended the run after update {updates}; the same command continues"
    assert updates >= 3 and [line for line in written.splitlines() if line.startswith("SIG")] == [
        "SIGINT: the run saves after this update and ends; a second signal ends it at once.",
        f"{ended} from `{path}`. The first validation will write `checkpoint_best.pt`.",
    ]
