"""Which errors come from losing another process, and how a run ends."""

import multiprocessing
import re
import subprocess
import sys
import time
from argparse import Namespace

import pytest
from torch import distributed as dist

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training import failures

LOST = (
    "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:22941.",
    "[/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:26001: Connection reset by peer.",
    "[/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
    "Wait timeout",
    "NCCL error in: ProcessGroupNCCL.cpp:2006, remote process exited or there was a network error",
)
OTHERS = (RuntimeError("out of memory"), ValueError("Connection closed by peer"), UserError("Timed out waiting"))


@pytest.fixture
def joined(monkeypatch):
    """This process is the first of two."""
    monkeypatch.setattr(failures, "several_processes", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)


@pytest.mark.parametrize("words", LOST)
def test_a_lost_process_is_named(words, joined):
    sentence = r"^Process 0 of 2 lost another process.*checkpoint_last\.pt\. \(" + re.escape(words) + r"\)$"
    with pytest.raises(UserError, match=sentence), failures.naming_lost_processes():
        raise Exception("Cannot load model parameters") from RuntimeError(words)


def test_what_the_library_said_is_said_on(joined):
    lost = failures.lost_process(dist.DistNetworkError("The host is down.\nat line 7"))
    assert str(lost).endswith("(The host is down.)")


def test_a_fault_of_this_process_alone_is_no_loss(joined):
    assert failures.lost_process(dist.DistBackendError("Duplicate GPU detected : rank 0 and rank 1")) is None


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_other_errors_stay_as_they_are(error, joined):
    with pytest.raises(type(error)) as raised, failures.naming_lost_processes():
        raise error
    assert raised.value is error


def test_in_one_process_no_error_is_a_loss():
    assert failures.lost_process(RuntimeError(LOST[0])) is None


SCRIPT = """
import sys
from fairseq_mtmoe.fairseq_patches.patch import Patch
from fairseq_mtmoe.training import failures
patch = Patch("sys.excepthook", (failures.showing_sentences,), "a test")
patch.apply(); patch.apply()
from torch import distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
failures.several_processes = lambda: True
print("printed")
{error}
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("raise RuntimeError('Connection closed by peer')", "error: Process 0 of 1 lost another process"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(1,)).start(); 1 / 0", "ZeroDivisionError"),
    ],
)
def test_an_uncaught_error_is_printed_and_ends_the_process(error, said):
    """After it torch's own hook prints what ours said, with the process's number before it."""
    command = [sys.executable, "-c", SCRIPT.format(error=error)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1 and result.stdout == "printed\n"
    assert said in result.stderr and "[rank0]" in result.stderr


def test_a_sentence_from_a_process_that_torch_started_is_shown_alone():
    kind = type("ProcessRaisedException", (Exception,), {})
    for name in (UserError, failures.LostProcess):
        text = f"\n-- Process 0 terminated:\nTraceback …\n{name.__module__}.{name.__name__}: `x` is bad.\n"
        assert str(failures.raised_in_spawned(kind(text))) == "`x` is bad."
    assert failures.raised_in_spawned(ValueError(text)) is None


# ---- the first error, told to all ----


@pytest.fixture
def told(joined, monkeypatch):
    """`joined`, and this process is told of errors, at a store in its memory."""
    monkeypatch.setattr(failures, "_PAUSE", 0.01)
    store = dist.HashStore()
    failures.start(store)
    yield failures.ErrorBroadcast(dist.PrefixStore("fairseq_mtmoe errors", store))
    failures.stop()


def test_the_first_sentence_is_the_reason_of_losing_others(told):
    lost = RuntimeError("Connection closed by peer [127.0.0.1]:22941.")
    assert failures.reason_of(lost) is lost and failures._broadcast.heard() is None
    failures.tell(lost)  # it says nothing that others should say, too
    assert failures._broadcast.heard() is None
    failures.stop()  # what is heard would end this process
    told.tell(Exception("Cannot load")), told.tell(UserError("`y` is bad."))
    assert "lost another process" in str(told.heard()) and "(process 0: Exception: Cannot load)" in str(told.heard())


def test_a_sentence_takes_the_place_of_a_loss_and_of_nothing_else(told, monkeypatch):
    monkeypatch.setattr(failures, "_GRACE", 100)
    told.tell(UserError("`x` is bad."))
    for lost in (RuntimeError("Connection closed by peer"), failures._lost_with("Connection closed")):
        assert str(failures.reason_of(lost)) == "`x` is bad."
    other = UserError("`y` is bad.")
    assert failures.reason_of(other) is other


def hold_a_store(ports):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ports.put(store.port)
    time.sleep(60)


def test_a_store_at_an_address_is_seen_until_its_process_goes(monkeypatch):
    monkeypatch.setattr(failures, "_PAUSE", 100)
    context = multiprocessing.get_context("forkserver")
    ports = context.Queue()
    holder = context.Process(target=hold_a_store, args=(ports,), daemon=True)
    holder.start()
    failures.start(dist.TCPStore("127.0.0.1", ports.get(timeout=60), is_master=False))
    one = failures._broadcast
    try:
        begin = time.monotonic()
        assert one._line is not None and one._is_there()
        assert time.monotonic() - begin < failures._GRACE / 2  # it looks, and does not wait
        holder.kill()
        deadline = time.monotonic() + 10
        while one._is_there():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        failures.stop()
        holder.kill()


LISTENING = """
import time
from argparse import Namespace
from torch import distributed as dist
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training import failures
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
failures.start(store)
if {fails}:
    failures._broadcast.tell(UserError("`x` is bad."))
    time.sleep(100)
failures.stop()
print("ended")
"""


@pytest.mark.parametrize(("fails", "code", "printed"), [(True, 1, ""), (False, 0, "ended\n")])
def test_a_process_ends_wherever_it_is_unless_it_stopped_listening(fails, code, printed):
    command = [sys.executable, "-c", LISTENING.format(fails=fails)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert (result.returncode, result.stdout) == (code, printed)
    assert result.stderr.strip().endswith("error: `x` is bad.") == fails


def fail(rank, main, cfg, kwargs):
    """In place of a training: the second process fails, and is slower to end than those that hear of it."""
    store = dist.FileStore(f"{cfg.folder}/meeting", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    failures.start(store, kwargs["parent"])
    if rank == 1:
        failures.tell(UserError("`x` is bad."))
    time.sleep(100)


def test_of_processes_that_this_one_started_it_says_alone_what_they_heard(tmp_path, monkeypatch, capfd):
    from fairseq_mtmoe.training import launch  # fairseq, which the processes do without

    monkeypatch.setattr("fairseq_mtmoe.training.rendezvous.distributed_main", fail)
    with pytest.raises(UserError, match=r"^`x` is bad\.$"):
        launch._spawn(Namespace(folder=tmp_path, distributed_training=Namespace()), None, {}, 2)
    assert "`x` is bad" not in capfd.readouterr().err
