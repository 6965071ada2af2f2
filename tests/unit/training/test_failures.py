"""Which errors come from losing another process, and how a run ends."""

import subprocess
import sys
import time
from argparse import Namespace

import pytest
from torch import distributed as dist

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training import failures
from tests.helpers.processes import FORKED
from tests.helpers.refused import refused
from tests.helpers.training import wait_for

LOST = (
    "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:22941.",
    "Wait timeout",
    "NCCL error in: ProcessGroupNCCL.cpp:2006, remote process exited or there was a network error",
)
OTHERS = (
    RuntimeError("out of memory"),
    ValueError("Connection closed by peer"),
    UserError("Timed out waiting"),
    dist.DistBackendError("Duplicate GPU detected : rank 0 and rank 1"),
)


@pytest.fixture
def told(monkeypatch):
    """This process is the first of two, and is told of errors at a store in its memory."""
    monkeypatch.setattr(failures, "_PAUSE", 0.01)
    monkeypatch.setattr(failures, "_GRACE", 100)
    failures.start(dist.HashStore(), 0, 2)
    yield
    failures._broadcast._thread.join = lambda timeout: None  # it waits for `_GRACE`
    failures.stop()


@pytest.mark.parametrize("words", LOST)
def test_a_lost_process_is_named(words, told):
    error = Exception("Cannot load model parameters")
    error.__cause__ = RuntimeError(f"{words}\nat line 7")
    failures.tell(error)  # it says nothing that others should say, too
    assert failures.heard() is None
    sentence = str(failures.reason_of(error))
    assert sentence.startswith("Process 0 of 2 lost another process") and sentence.endswith(f"last.pt. ({words})")


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_other_errors_stay_as_they_are_and_are_told(error, told):
    assert failures.reason_of(error) is error
    failures.tell(error)
    assert str(error) in str(failures.heard())


def test_the_first_error_takes_the_place_of_a_loss_and_of_nothing_else(told):
    lost, other = RuntimeError(LOST[0]), UserError("`y` is bad.")
    failures.tell(UserError("`x` is bad."))
    failures.tell(other)
    assert str(failures.reason_of(lost)) == "`x` is bad."
    assert failures.reason_of(other) is other


def hold_a_store(ports):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ports.put(store.port)
    time.sleep(60)


def test_a_store_at_an_address_is_seen_until_its_process_goes(monkeypatch):
    monkeypatch.setattr(failures, "_PAUSE", 100)
    ports = FORKED.Queue()
    holder = FORKED.Process(target=hold_a_store, args=(ports,), daemon=True)
    holder.start()
    failures.start(dist.TCPStore("127.0.0.1", ports.get(timeout=60), is_master=False), 0, 2)
    one = failures._broadcast
    try:
        begin = time.monotonic()
        assert one._line is not None and one._is_there()
        assert time.monotonic() - begin < failures._GRACE / 2  # it looks, and does not wait
        holder.kill()
        wait_for(lambda: not one._is_there())
    finally:
        failures.stop()
        holder.kill()


SCRIPT = """
import time
from torch import distributed as dist
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.fairseq_patches.patch import Patch
from fairseq_mtmoe.training import failures
patch = Patch("sys.excepthook", failures.showing_sentences, "a test")
patch.apply(); patch.apply()
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
print("printed")
{ending}
"""
BUG = """
import threading
failures.several_processes = lambda: True
threading.Thread(target=time.sleep, args=(1,)).start()
1 / 0
"""


def run(ending):
    return subprocess.run([sys.executable, "-c", SCRIPT.format(ending=ending)], capture_output=True, text=True)


def test_an_error_is_printed_and_ends_a_process_wherever_it_is_unless_it_stopped_listening():
    """After one that nobody caught torch's own hook prints what ours said, with the process's number before it."""
    result = run(BUG)
    assert (result.returncode, result.stdout) == (1, "printed\n")
    assert "ZeroDivisionError" in result.stderr and "[rank0]" in result.stderr
    result = run("failures.start(store, 0, 1); failures.tell(UserError('`x` is bad.')); time.sleep(100)")
    assert (result.returncode, result.stdout) == (1, "printed\n")
    assert result.stderr.strip().endswith("error: `x` is bad.")
    assert run("failures.start(store, 0, 1); failures.stop()").returncode == 0


def fail(rank, main, cfg, kwargs):
    """In place of a training: the second process fails, and is slower to end than those that hear of it."""
    store = dist.FileStore(f"{cfg.folder}/meeting", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    failures.start(store, rank, 2, lambda sentence: kwargs["parent"].put((rank, sentence)))
    if rank == 1:
        failures.tell(UserError("`x` is bad."))
    time.sleep(100)


def test_of_processes_that_this_one_started_it_says_alone_what_they_heard(tmp_path, monkeypatch, capfd):
    from fairseq_mtmoe.training import launch  # fairseq, which the processes do without

    monkeypatch.setattr("fairseq_mtmoe.training.rendezvous.distributed_main", fail)
    with refused("x"):
        launch._spawn(Namespace(folder=tmp_path, distributed_training=Namespace()), None, {}, 2)
    assert "`x` is bad" not in capfd.readouterr().err
