"""Signals that end a run of one process: what they leave, and that the run goes on from it as if there were none."""

import ctypes
import logging
import multiprocessing
import os
import signal
import time
from multiprocessing.context import SpawnProcess

import pytest
from torch.multiprocessing import spawn

from fairseq_mtmoe import register
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.training import stopping
from tests.golden.old_runs import OLD, RUNS
from tests.helpers.digits import make_digit_corpus
from tests.helpers.training import interrupted, train_here
from tests.kill.runs import Outcome, compare

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=120, valid=8, test=4)


# ---- a run goes on as if there had been no signal ----

HEATED = ("--num-experts", 2)
STOCK = ("--task", "translation", "--source-lang", "en", "--target-lang", "aa", "--arch", "base_dense_tiny")
SAVES = ("--max-tokens", 120, "--dropout", 0.1, "--update-freq", 2, "--max-epoch", 2, "--save-interval-updates", 4,
         "--num-workers", 0)  # fmt: skip


def updates_of(folder):
    return file_io.load(str(folder / "checkpoint_last.pt"))["optimizer_history"][-1]["num_updates"]


@pytest.mark.parametrize("options", [HEATED, STOCK], ids=["translation_heated", "translation"])
def test_a_run_that_is_ended_at_updates_and_in_validations_ends_as_one_that_is_not(options, corpus, tmp_path, capfd):
    """In the middle of an epoch, in a validation there, in one at the end of an epoch, and in the last one."""
    train_here(corpus, tmp_path / "all", *options, *SAVES)
    last, run = updates_of(tmp_path / "all"), tmp_path / "run"
    updates = []
    for number, moment in (
        (signal.SIGINT, ("train_step", 3)),
        (signal.SIGTERM, ("valid_step", 1)),
        (signal.SIGUSR1, ("get_train_iterator", 2)),  # between the epochs
        (signal.SIGINT, ("begin_valid_epoch", last, False)),
    ):
        with interrupted(moment[0], moment[1], number, *moment[2:]) as ended:
            train_here(corpus, run, *options, *SAVES)
        assert ended.value.code == stopping.exit_code(number)
        updates.append(updates_of(run))
        sentence = f"{number.name} ended the run after update {updates[-1]}: the same command goes on from `{run}/"
        assert sentence in capfd.readouterr().err
    assert updates == [3, 4, last // 2 + 1, last]
    train_here(corpus, run, *options, *SAVES)
    assert compare(tmp_path / "all", run) == Outcome(difference=0.0, leftovers=())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--restore-file", OLD / "sparse" / "checkpoint_last.pt", "--reset-optimizer"),
         "the same command without `--restore-file`, `--reset-optimizer` goes on from"),
        (("--no-save",), "with `--no-save` it saves nothing to go on from"),
    ],
)  # fmt: skip
def test_options_that_are_for_once_are_named(options, words, tmp_path, capfd):
    with interrupted("train_step", 1, signal.SIGTERM):
        train_here(OLD / "data", tmp_path, *RUNS["sparse"], *options, "--max-update", 100, "--num-workers", 0)
    assert words in capfd.readouterr().err


# ---- the watch ----


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_first_signal_counts_and_the_handlers_come_back(capfd):
    before = [signal.getsignal(number) for number in stopping.SIGNALS]
    with stopping.watched():
        stopping.saves_from_now_on()
        assert stopping.received() is None
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # as from `timeout`: one for the process and one for its group
        wait_for(stopping.received)
        time.sleep(0.05)
        with stopping.watched():
            assert stopping.received() is signal.SIGTERM
    assert stopping.received() is None
    assert [signal.getsignal(number) for number in stopping.SIGNALS] == before
    notice = "SIGTERM: the run saves after this update and ends; a second signal ends it at once.\n"
    assert capfd.readouterr().err == notice


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
    with stopping.watched():
        tell.send(None)
        time.sleep(60)


def inside_c_code(tell):
    """As in an exchange with a process that does not answer: no handler of Python's runs."""
    with stopping.watched():
        stopping.saves_from_now_on()
        tell.send(None)
        libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
        libc.pthread_mutex_lock(mutex)
        libc.pthread_mutex_lock(mutex)


def test_a_signal_before_the_first_update_ends_at_once(capfd):
    assert ends(start_up, (0, signal.SIGTERM)) == 143
    assert capfd.readouterr().err.startswith("SIGTERM ended the run before its first update, and nothing is lost")
    assert ends(start_up, (0, signal.SIGINT)) == 130
    assert ends(ignores_ctrl_c, (0, signal.SIGINT), (0.1, signal.SIGTERM)) == 143


def test_a_second_signal_ends_at_once_whatever_the_process_waits_for(capfd):
    assert ends(inside_c_code, (0, signal.SIGUSR1), (stopping.AS_ONE + 0.2, signal.SIGINT)) == 130
    assert "SIGINT ended the run at once" in capfd.readouterr().err


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


@pytest.mark.parametrize(
    ("got", "agreed"),
    [
        ([None, signal.SIGUSR1, None], signal.SIGUSR1),
        ([None] * 3, None),
        ([signal.SIGUSR1, signal.SIGTERM, signal.SIGUSR1], signal.SIGTERM),
    ],
)
def test_processes_agree_on_a_signal(got, agreed):
    assert stopping.decode_signal(sum(stopping.encode_signal(number, 3) for number in got), 3) == agreed
