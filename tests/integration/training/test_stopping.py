"""Signals that end a run, which goes on as if there were none; and its folder's lock, which no dead process holds."""

import ctypes
import errno
import fcntl
import logging
import multiprocessing
import os
import signal
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path
from unittest import mock

import pytest
from torch.multiprocessing import spawn

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.report import run_log
from fairseq_mtmoe.training import stopping
from fairseq_mtmoe.training.saving import LOCK_NAME, lock
from tests.helpers.states import assert_same
from tests.helpers.trainers import trainer_here
from tests.helpers.training import interrupted, signalled, train_here, wait_for

ADVICE = "the same command continues"
FORK = multiprocessing.get_context("fork")
SAVES = ("--max-tokens", 220, "--dropout", 0.1, "--update-freq", 2, "--max-epoch", 3, "--save-interval-updates", 4,
         "--num-workers", 0, "--num-experts", 2)  # fmt: skip


def updates_of(folder):
    return file_io.load(str(folder / "checkpoint_last.pt"))["optimizer_history"][-1]["num_updates"]


def validations_of(folder):
    """The updates after which a run was validated, with the losses."""
    return [(event["update"], event["all"]["loss"]) for event in run_log.read(folder) if event["event"] == "valid"]


def test_a_run_that_is_ended_at_updates_and_in_validations_ends_as_one_that_is_not(corpus, tmp_path, capfd):
    """In the middle of an epoch, in a validation there, between epochs, at the last update of an epoch, in the
    validation that is then made again, and in the last validation, which ends."""
    train_here(corpus, tmp_path / "all", *SAVES)
    last, run = updates_of(tmp_path / "all"), tmp_path / "run"
    epoch = last // 3
    for updates, number, *moment in (
        (3, signal.SIGINT, "train_step", 3),
        (4, signal.SIGTERM, "valid_step", 1),
        (epoch + 1, signal.SIGUSR1, "get_train_iterator", 2),  # between the epochs
        (2 * epoch, signal.SIGINT, "train_step", epoch - 1),
        (2 * epoch, signal.SIGINT, "valid_step", 1),
    ):
        with interrupted(number, *moment) as ended:
            train_here(corpus, run, *SAVES)
        assert (ended.value.code, updates_of(run)) == (stopping.exit_code(number), updates)
        sentence = f"{number.name} ended the run after update {updates}; the same command continues from `{run}/"
        assert sentence in capfd.readouterr().err
    with signalled(signal.SIGINT, "begin_valid_epoch", last, at_calls=False):
        train_here(corpus, run, *SAVES)
    best = file_io.load(str(run / "checkpoint_best.pt"))["extra_state"]["best"]
    said = f"The run has ended after update {last}; its best checkpoint is `{run}/checkpoint_best.pt`, with loss "
    evaluate = f"Next: `mtmoe evaluate {corpus} --path {run}/checkpoint_best.pt`."
    assert f"{said}{best:.3f}. {evaluate}\n" in capfd.readouterr().err
    for name in ("checkpoint_last.pt", "checkpoint_best.pt"):
        whole, resumed = (file_io.load(str(folder / name)) for folder in (tmp_path / "all", run))
        for part in ("model", "last_optimizer_state"):
            assert_same(resumed[part], whole[part])
        for score in ("val_loss", "best"):
            assert resumed["extra_state"][score] == whole["extra_state"][score]
    assert validations_of(run) == validations_of(tmp_path / "all")


def test_the_first_signal_counts_and_the_handlers_come_back(capfd):
    before = [signal.getsignal(number) for number in stopping.SIGNALS]
    with stopping.watched():
        stopping.saves_from_now_on(lambda: ADVICE)
        assert stopping.received() is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # as from `timeout`: one for the process and one for its group
        wait_for(stopping.received)
        time.sleep(0.05)
        with stopping.watched():
            assert stopping.received() is signal.SIGTERM
    assert stopping.received() is None
    assert [signal.getsignal(number) for number in stopping.SIGNALS] == before
    assert len(capfd.readouterr().err.splitlines()) == 1


def ignores_ctrl_c(tell):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_up(tell)


def ends(function, *after):
    """The exit code of a process that runs a function and gets the signals, each after so many seconds."""
    ready, tell = FORK.Pipe(duplex=False)
    process = FORK.Process(target=function, args=(tell,))
    process.start()
    tell.close()  # a process that fails then ends the wait for it
    ready.recv()
    for seconds, number in after:
        time.sleep(seconds)
        os.kill(process.pid, number)
    process.join(10)
    return process.exitcode


def start_up(tell):
    """As a process that fairseq spawned, which has no other handler."""
    stopping.main_of_spawned(wait_to_be_ended, tell)


def wait_to_be_ended(tell):
    tell.send(None)
    time.sleep(60)


def inside_c_code(tell):
    """As in an exchange with a process that does not answer: no handler of Python's runs."""
    with stopping.watched():
        stopping.saves_from_now_on(lambda: ADVICE)
        tell.send(None)
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)


def test_a_signal_before_the_first_update_and_a_second_one_end_at_once(capfd):
    assert ends(start_up, (0, signal.SIGTERM)) == 143
    assert capfd.readouterr().err.startswith("SIGTERM ended the run before its first update; nothing is lost")
    assert ends(start_up, (0, signal.SIGINT)) == 130
    assert ends(ignores_ctrl_c, (0, signal.SIGINT), (0.1, signal.SIGTERM)) == 143
    # A second one, whatever the process waits for.
    assert ends(inside_c_code, (0, signal.SIGUSR1), (stopping.AS_ONE + 0.2, signal.SIGINT)) == 130
    assert f"SIGINT ended the run at once; {ADVICE}." in capfd.readouterr().err


def waits_for_spawned(tell):
    """As torch does, for processes of which one has ended, which `active_children` has not noticed."""
    alive, ended = (multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,)) for _ in range(2))
    with stopping.watched():
        alive.start(), ended.start()
        ended.kill()
        ended.join(10)
        multiprocessing.active_children = lambda: [SpawnProcess(), ended, alive]  # one that has not started, too
        tell.send(None)
        alive.join(10)
        warns = logging.getLogger(spawn.__module__).isEnabledFor(logging.WARNING)  # of those that it ends
        os._exit(1 if warns else -alive.exitcode)


def test_a_signal_reaches_those_that_torch_spawned_and_nobody_else():
    assert ends(waits_for_spawned, (0, signal.SIGTERM)) == signal.SIGTERM


def with_worker(tell):
    with stopping.watched():
        worker = FORK.Process(target=time.sleep, args=(60,), daemon=True)
        worker.start()
        time.sleep(0.1)
        for number in stopping.SIGNALS:
            stranger = FORK.Process(target=os.kill, args=(worker.pid, number))
            stranger.start()
            stranger.join()
        worker.join(0.2)
        assert worker.is_alive() and stopping.received() is None
        worker.terminate()
        worker.join(10)
        assert not worker.is_alive()
    tell.send(None)


def test_workers_end_by_their_parents_signal_alone():
    register()
    assert ends(with_worker) == 0


def hold(path, ready):
    """Hold the lock of a folder as a run does, with a child that outlives it and has all its files, until killed."""
    os.setsid()
    file = open(path, "w")  # noqa: SIM115
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    file.write("process 123 of a-host.net since 2022-02-22 22:22")
    file.flush()
    if os.fork():
        ready.set()
    time.sleep(60)


@pytest.fixture
def holder(tmp_path):
    ready = FORK.Event()
    process = FORK.Process(target=hold, args=(tmp_path / LOCK_NAME, ready))
    process.start()
    assert ready.wait(60)
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.join()


def test_a_second_training_says_who_holds_the_folder(holder, corpus, tmp_path):
    said = rf"`{tmp_path}`\) is in use by process 123 of a-host.net since 2022-02-22 22:22"
    with pytest.raises(UserError, match=said):
        train_here(corpus, tmp_path, "--max-tokens", 120)
    (tmp_path / LOCK_NAME).write_text("")
    with pytest.raises(UserError, match="is in use by another process; wait"):
        lock(str(tmp_path))
    trainer_here(corpus, tmp_path, "--max-tokens", 120, "--no-save").lock_save_dir()  # it writes nothing


def is_free(folder):
    """Whether another process can lock the folder."""
    process = FORK.Process(target=lambda: lock(str(folder)).close())
    process.start()
    process.join()
    return process.exitcode == 0


def test_a_killed_process_holds_nothing_and_neither_does_its_child(holder, tmp_path):
    holder.kill()
    holder.join()
    with lock(str(tmp_path)):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)
    with lock(str(tmp_path)):
        holder_now = (tmp_path / LOCK_NAME).read_text()  # which releases the lock, as the same process closes the file
        assert f"process {os.getpid()} of " in holder_now and "2022" not in holder_now


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.parent / "precious"), None])
def test_what_cannot_be_locked_or_should_not_be_opened_is_a_warning(make, tmp_path, monkeypatch, caplog):
    (tmp_path / "precious").write_text("text")
    if make is None:
        no_locks = OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
        monkeypatch.setattr(fcntl, "lockf", mock.Mock(side_effect=no_locks))
    else:
        make(tmp_path / LOCK_NAME)
    assert lock(str(tmp_path)) is None
    assert "cannot be locked" in caplog.text and (tmp_path / "precious").read_text() == "text"
    assert make is not None or no_locks.strerror in caplog.text
