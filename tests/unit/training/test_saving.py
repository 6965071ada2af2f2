"""What several processes read of a checkpoint; and the lock of a run's folder, which no dead process holds."""

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_mtmoe.checkpoints.rewriting import write_in_parts
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training import saving
from fairseq_mtmoe.training.resuming import _read_share
from fairseq_mtmoe.training.saving import LOCK_NAME, lock
from tests.golden.old_runs import OLD, RUNS
from tests.helpers.digits import make_digit_corpus
from tests.helpers.opened import opened_from_now
from tests.helpers.refused import refused
from tests.helpers.trainers import trainer_here
from tests.helpers.training import train_here


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A checkpoint of four experts in two shards."""
    path = tmp_path_factory.mktemp("parts") / "checkpoint_last.pt"
    write_in_parts(OLD / "sparse" / "checkpoint_last.pt", path, 2)
    return path


def test_a_process_opens_each_file_once(parts, tmp_path):
    trainer = trainer_here(OLD / "data", tmp_path, *RUNS["sparse"])
    opened = opened_from_now()
    assert _read_share(trainer, str(parts))["model"]
    assert opened() == ["checkpoint_last.pt", "0-1.pt", "2-3.pt"]


def test_what_differs_is_said_without_opening_the_file_again(parts, tmp_path):
    trainer = trainer_here(OLD / "data", tmp_path, *RUNS["sparse"], "--num-experts", 2, "--encoder-embed-dim", 16)
    opened = opened_from_now()
    with refused("--encoder-embed-dim", "checkpoint_last.pt"):
        _read_share(trainer, str(parts))
    assert opened() == ["checkpoint_last.pt"]


# ---- the lock ----

# Holds the lock of a folder as a run does, with a child that outlives it and has all its files, until it is killed.
HOLDER = """
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
file.write("process 123 of a-host.net since 2022-02-22 22:22")
file.flush()
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    command = [sys.executable, "-c", HOLDER, str(tmp_path / LOCK_NAME)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout.readline() == b"held\n"
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_a_second_training_says_who_holds_the_folder(holder, tmp_path):
    corpus = make_digit_corpus(tmp_path / "data", train=60, valid=4, test=4)
    sentence = rf"no other training uses, but `{tmp_path}` is used by process 123 of a-host.net since 2022-02-22 22:22"
    with pytest.raises(UserError, match=sentence):
        train_here(corpus, tmp_path, "--max-tokens", 120)
    (tmp_path / LOCK_NAME).write_text("\0damaged" * 1000)
    with pytest.raises(UserError, match="is used by another process: wait"):
        lock(str(tmp_path))
    trainer_here(corpus, tmp_path, "--max-tokens", 120, "--no-save").lock_save_dir()  # it writes nothing


def test_processes_lock_a_folder_together_once(tmp_path, monkeypatch):
    """Also those that hold nothing themselves: the first one, which does, would not wait for them a second time."""
    asked = []
    monkeypatch.setattr(saving, "lock_together", lambda *given: asked.append(given))
    trainer = trainer_here(
        make_digit_corpus(tmp_path / "data", train=60, valid=4, test=4), tmp_path, "--max-tokens", 120
    )
    trainer.lock_save_dir()
    trainer.lock_save_dir()
    assert asked == [(str(tmp_path), True)]


def is_free(folder):
    """Whether another process can lock the folder."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=lambda: lock(str(folder)).close())
    process.start()
    process.join()
    return process.exitcode == 0


def test_a_killed_process_holds_nothing_and_neither_does_its_child(holder, tmp_path):
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with lock(str(tmp_path)):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)
    with lock(str(tmp_path)):
        holder_now = (tmp_path / LOCK_NAME).read_text()  # which releases the lock, as the same process closes the file
        assert f"process {os.getpid()} of " in holder_now and "2022" not in holder_now


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert lock(str(tmp_path)) is None
    assert "cannot be locked" in caplog.text and os.strerror(errno.ENOLCK) in caplog.text


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.parent / "precious")])
def test_a_file_that_cannot_be_opened_or_should_not_be_is_a_warning(make, tmp_path, caplog):
    (tmp_path / "precious").write_text("text")
    make(tmp_path / LOCK_NAME)
    assert lock(str(tmp_path)) is None
    assert "cannot be locked" in caplog.text and (tmp_path / "precious").read_text() == "text"
