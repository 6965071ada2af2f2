"""The real command, in one process with a worker that loads data and in two: signals end it in a sentence."""

import os
import signal
import subprocess
import time

import pytest

from fairseq_mtmoe.checkpoints import assemble
from tests.helpers.commands import BIN, ENVIRONMENT, REPOSITORY, training_arguments
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
    arguments = training_arguments(corpus, folder / "run", *OPTIONS, *(joined if world_size > 1 else ()))
    with open(folder / f"{rank}.out", "w") as out, open(folder / f"{rank}.err", "w") as err:
        command = [str(BIN / "fairseq-train"), *map(str, arguments)]
        return subprocess.Popen(
            command, stdout=out, stderr=err, cwd=REPOSITORY, env=ENVIRONMENT, start_new_session=True
        )


def wait_for_update(folder, number):
    deadline = time.monotonic() + SECONDS
    while f"num_updates={number}," not in (folder / "0.out").read_text():
        assert time.monotonic() < deadline, (folder / "0.err").read_text()[-3000:]
        time.sleep(0.05)


def saved_updates(folder):
    shared_part = assemble.load_shared_part(folder / "run" / "checkpoint_last.pt")
    return shared_part["optimizer_history"][-1]["num_updates"]


def messages(folder, ranks):
    """What the processes wrote of interest: every line about a signal, and nothing that looks like an error."""
    written = "".join((folder / f"{rank}.{kind}").read_text() for rank in range(ranks) for kind in ("out", "err"))
    assert "Traceback" not in written and "rror:" not in written, written[-3000:]
    return [line for line in written.splitlines() if line.startswith("SIG")]


def test_ctrl_c_reaches_all_processes_of_a_terminal_and_the_run_saves(corpus, tmp_path):
    process = start(corpus, tmp_path)
    try:
        wait_for_update(tmp_path, 3)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(SECONDS) == 130
    finally:
        process.kill()
    updates = saved_updates(tmp_path)
    path = tmp_path / "run" / "checkpoint_last.pt"
    assert updates >= 3 and messages(tmp_path, 1) == [
        "SIGINT: the run saves after this update and ends; a second signal ends it at once.",
        f"SIGINT ended the run after update {updates}: the same command goes on from `{path}`.",
    ]


def test_two_processes_end_together_wherever_a_signal_finds_them(corpus, tmp_path):
    processes = [start(corpus, tmp_path, rank, world_size=2) for rank in range(2)]
    try:
        wait_for_update(tmp_path, 3)
        for process in reversed(processes):
            os.killpg(process.pid, signal.SIGTERM)
            time.sleep(0.1)
        assert [process.wait(SECONDS) for process in processes] == [143, 143]
    finally:
        for process in processes:
            process.kill()
    last = messages(tmp_path, 2)[-1]
    assert last.startswith(f"SIGTERM ended the run after update {saved_updates(tmp_path)}: the same command goes on")
    assert sum("ended the run" in line for line in messages(tmp_path, 2)) == 1
