"""The job file for SLURM, with stand-ins for `srun` and `scontrol` and a real run in two processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairseq_mtmoe.checkpoints.assemble import load_shared_part
from tests.helpers.commands import ENVIRONMENT, REPOSITORY, training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.helpers.scripts import write_commands

JOB = REPOSITORY / "examples/translation/slurm/train.sbatch"
SECONDS = 300  # many times what any wait takes on an idle machine

# It imports fairseq once for both processes.
SRUN = f"""#!{sys.executable}
import itertools, os, sys

options = list(itertools.takewhile(lambda part: part.startswith("--"), sys.argv[1:]))
print("srun", *options, file=open(os.environ["CALLS"], "a"))
tasks = int(dict(part.split("=") for part in options).get("--ntasks", os.environ["SLURM_NTASKS"]))
command = sys.argv[1 + len(options):]
if command[0] == "fairseq-train":
    from fairseq_cli.train import cli_main
started = []
for rank in range(tasks):
    started.append(os.fork())
    if not started[-1]:
        os.setsid()
        os.environ.update(SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
        if command[0] != "fairseq-train":
            os.execvp(command[0], command)
        sys.argv = command
        sys.exit(cli_main())
print(*started, file=open(os.environ["TASKS"], "w"), flush=True)
codes = [os.waitstatus_to_exitcode(os.waitpid(task, 0)[1]) for task in started]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
SCONTROL = """#!/bin/sh
[ "$1 $2" = "show hostnames" ] && printf '127.0.0.1\\nother-node\\n' && exit
echo "scontrol $*" >> "$CALLS"
"""


@pytest.fixture
def cluster(tmp_path):
    path = write_commands(tmp_path / "bin", srun=SRUN, scontrol=SCONTROL)
    job = {"JOB_ID": str(20000 + os.getpid()), "JOB_NODELIST": "node[1-2]", "NTASKS": "2", "JOB_NUM_NODES": "1",
           "CPUS_PER_TASK": "3"}  # fmt: skip
    slurm = {f"SLURM_{name}": value for name, value in job.items()}
    own = {"PATH": path, "CALLS": f"{tmp_path}/calls", "TASKS": f"{tmp_path}/tasks"}
    return {**ENVIRONMENT, **slurm, **own}


def start(cluster, log, *command):
    with open(log, "w") as out:
        return subprocess.Popen(["bash", JOB, *map(str, command)], stdout=out, stderr=out, cwd=REPOSITORY, env=cluster)


def wait_for_update(job, log, number):
    deadline = time.monotonic() + SECONDS
    while f"num_updates={number}," not in log.read_text():
        assert job.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)


def end_by(number, cluster, job, log, *others):
    """Send the signal to the job's tasks and other processes; the job's exit code."""
    for pid in (*others, *map(int, Path(cluster["TASKS"]).read_text().split())):
        os.kill(pid, number)
    try:
        return job.wait(SECONDS)
    except subprocess.TimeoutExpired:
        job.kill()
        raise AssertionError(log.read_text()[-3000:]) from None


def saved_updates(folder):
    return load_shared_part(folder / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"]


def test_a_job_comes_back_after_its_turn_and_not_when_it_is_cancelled(cluster, tmp_path):
    corpus = make_digit_corpus(tmp_path / "digits", train=3000, valid=4, test=4)
    options = ("--num-experts", 2, "--max-tokens", 120, "--log-interval", 1, "--distributed-timeout", 60)
    command = ("fairseq-train", *training_arguments(corpus, tmp_path / "run", *options))
    log, next_log, calls = tmp_path / "log", tmp_path / "next", tmp_path / "calls"
    job = start(cluster, log, *command)
    wait_for_update(job, log, 3)
    assert end_by(signal.SIGUSR1, cluster, job, log) == 138  # SLURM, shortly before the turn is over
    run = "srun --cpus-per-task=3 --kill-on-bad-exit=0 --wait=120"
    assert calls.read_text().splitlines() == [run, f"scontrol requeue {cluster['SLURM_JOB_ID']}"]
    done = saved_updates(tmp_path / "run")
    assert done >= 3 and "SIGUSR1 ended the run after update" in log.read_text()

    job = start({**cluster, "SLURM_RESTART_COUNT": "1"}, next_log, *command)
    wait_for_update(job, next_log, done + 1)
    assert end_by(signal.SIGTERM, cluster, job, next_log, job.pid) == 143  # scancel
    assert calls.read_text().splitlines()[2:] == [run]
    assert saved_updates(tmp_path / "run") > done and "num_updates=1," not in next_log.read_text()


@pytest.mark.parametrize(("restarts", "code", "is_requeued"), [(0, 138, True), (100, 138, False), (0, 1, False)])
def test_which_ends_bring_a_job_back(restarts, code, is_requeued, cluster, tmp_path):
    job = start({**cluster, "SLURM_RESTART_COUNT": str(restarts)}, tmp_path / "log", "sh", "-c", f"exit {code}")
    assert job.wait(SECONDS) == code
    assert ("scontrol requeue" in (tmp_path / "calls").read_text()) == is_requeued


def test_each_process_learns_its_place_and_reads_a_copy_on_its_node(cluster, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "dict.txt").write_text("word 1\n")
    os.utime(tmp_path / "data" / "dict.txt", ns=(10**18 + 1, 10**18 + 1))  # the cache of tokenized data looks at it
    local = {"DATA": str(tmp_path / "data"), "LOCAL": str(tmp_path / "disk" / "data")}
    show = 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR $DATA" > "$OUT/$RANK"; cat "$DATA/dict.txt"'
    job = start({**cluster, **local, "OUT": str(tmp_path)}, tmp_path / "log", "bash", "-c", show)
    assert job.wait(SECONDS) == 0
    assert (tmp_path / "log").read_text() == "word 1\n" * 2
    found = [(tmp_path / rank).read_text() for rank in "01"]
    assert found == [f"{rank} {rank} 2 127.0.0.1 {local['LOCAL']}\n" for rank in "01"]
    assert (tmp_path / "disk" / "data" / "dict.txt").stat().st_mtime_ns == 10**18 + 1
    assert (tmp_path / "calls").read_text().splitlines()[0] == "srun --ntasks=1 --ntasks-per-node=1"
