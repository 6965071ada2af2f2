"""The real command, in one process with a worker that loads data and in two: signals end it in a sentence."""

import os
import signal
import time

import pytest

from fairseq_mtmoe.checkpoints import assemble
from tests.helpers.commands import start_command, training_arguments
from tests.helpers.digits import make_digit_corpus

SECONDS = 120  # many times what any wait takes on an idle machine
OPTIONS = (
    "--num-experts", 2, "--max-tokens", 120, "--log-interval", 1, "--num-workers", 1, "--distributed-timeout", 60,
)  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=3000, valid=4, test=4)


def start(corpus, folder, rank=0, world_size=1):
    joined = (
        "--distributed-backend", "gloo", "--distributed-world-size", world_size, "--distributed-no-spawn",
        "--distributed-init-method", f"file://{folder}/meeting", "--distributed-rank", rank,
    )  # fmt: skip
    return start_command(
        "fairseq-train", *training_arguments(corpus, folder, *OPTIONS, *(joined if world_size > 1 else ()))
    )


def wait_for_update(process, number):
    deadline = time.monotonic() + SECONDS
    while f"num_updates={number}," not in process.out():
        assert time.monotonic() < deadline, process.err()[-3000:]
        time.sleep(0.05)


def saved_updates(folder):
    return assemble.load_shared_part(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]


def messages(*processes):
    """What the processes wrote of interest: every line about a signal, and nothing that looks like an error."""
    written = "".join(text for process in processes for text in (process.out(), process.err()))
    assert "Traceback" not in written and "rror:" not in written, written[-3000:]
    return [line for line in written.splitlines() if line.startswith("SIG")]


def test_ctrl_c_reaches_all_processes_of_a_terminal_and_the_run_saves(corpus, tmp_path):
    with start(corpus, tmp_path) as process:
        wait_for_update(process, 3)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) == 130
        said = messages(process)
    updates, path = saved_updates(tmp_path), tmp_path / "checkpoint_last.pt"
    assert updates >= 3 and said == [
        "SIGINT: the run saves after this update and ends; a second signal ends it at once.",
        f"SIGINT ended the run after update {updates}: the same command goes on from `{path}`.",
    ]


def test_two_processes_end_together_wherever_a_signal_finds_them(corpus, tmp_path):
    first, second = (start(corpus, tmp_path, rank, world_size=2) for rank in range(2))
    with first, second:
        wait_for_update(first, 3)
        for process in (second, first):
            os.killpg(process.pid, signal.SIGTERM)
            time.sleep(0.1)
        assert [first.wait(SECONDS), second.wait(SECONDS)] == [143, 143]
        said = messages(first, second)
    assert said[-1].startswith(
        f"SIGTERM ended the run after update {saved_updates(tmp_path)}: the same command goes on"
    )
    assert sum("ended the run" in line for line in said) == 1
