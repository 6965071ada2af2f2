"""The first error of a run is told to all processes: two of them, played by one at a store in its memory."""

import multiprocessing
import subprocess
import sys
import threading
import time
from argparse import Namespace

import pytest
from torch import distributed as dist

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training import error_broadcast, rank_failures


@pytest.fixture
def joined(monkeypatch):
    """This process is the first of two, and is told of errors."""
    monkeypatch.setattr(rank_failures, "several_processes", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(error_broadcast, "_PAUSE", 0.01)
    store = dist.HashStore()
    error_broadcast.start(store)
    yield error_broadcast.ErrorBroadcast(dist.PrefixStore("fairseq_mtmoe errors", store))
    error_broadcast.stop()


def test_the_first_sentence_is_the_reason_of_losing_others(joined):
    lost = RuntimeError("Connection closed by peer [127.0.0.1]:22941.")
    assert error_broadcast.reason_of(lost) is lost and error_broadcast._broadcast.heard() is None
    error_broadcast.tell(lost)  # it says nothing that others should say, too
    assert error_broadcast._broadcast.heard() is None
    error_broadcast.stop()  # what is heard would end this process
    joined.tell(Exception("Cannot load")), joined.tell(UserError("`y` is bad."))
    assert "lost another process" in str(joined.heard()) and "(process 0: Exception: Cannot load)" in str(
        joined.heard()
    )


def test_a_sentence_takes_the_place_of_a_loss_and_of_nothing_else(joined, monkeypatch):
    monkeypatch.setattr(error_broadcast, "_GRACE", 100)
    joined.tell(UserError("`x` is bad."))
    for lost in (RuntimeError("Connection closed by peer"), rank_failures.lost_with("Connection closed")):
        assert str(error_broadcast.reason_of(lost)) == "`x` is bad."
    other = UserError("`y` is bad.")
    assert error_broadcast.reason_of(other) is other


def test_a_store_that_is_gone_is_nothing_to_hear():
    class Gone:
        def check(self, keys):
            raise RuntimeError("Connection reset by peer")

        compare_set = check

    one = error_broadcast.ErrorBroadcast(Gone())
    one.listen()
    one.stop()
    assert one.heard() is None


def hold_a_store(ports):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ports.put(store.port)
    time.sleep(60)


def test_a_store_at_an_address_is_seen_until_its_process_goes(monkeypatch):
    monkeypatch.setattr(error_broadcast, "_PAUSE", 100)
    context = multiprocessing.get_context("forkserver")
    ports = context.Queue()
    holder = context.Process(target=hold_a_store, args=(ports,), daemon=True)
    holder.start()
    error_broadcast.start(dist.TCPStore("127.0.0.1", ports.get(timeout=60), is_master=False))
    one = error_broadcast._broadcast
    try:
        begin = time.monotonic()
        assert one._line is not None and one._is_there()
        assert time.monotonic() - begin < error_broadcast._GRACE / 2  # it looks, and does not wait
        holder.kill()
        deadline = time.monotonic() + 10
        while one._is_there():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        error_broadcast.stop()
        holder.kill()


@pytest.mark.parametrize("comes", [True, False])
def test_a_process_that_told_ends_when_the_others_have_heard_or_had_the_time(comes, joined, monkeypatch):
    monkeypatch.setattr(error_broadcast, "_GRACE", 100)
    monkeypatch.setattr(error_broadcast, "_PAUSE", 0.4 if comes else 0.04)
    monkeypatch.setattr(dist, "get_rank", lambda: int(threading.current_thread() is other))
    heard = []

    def look():
        time.sleep(0.1)
        heard.append(error_broadcast.ErrorBroadcast(joined._store).heard())

    other = threading.Thread(target=look)
    joined.tell(UserError("`x` is bad."))
    if comes:
        other.start()
    begin = time.monotonic()
    joined.stop()
    took = time.monotonic() - begin
    assert list(map(str, heard)) == ["`x` is bad."] * comes
    assert 0.09 <= took < 1.0


SCRIPT = """
import time
from argparse import Namespace
from torch import distributed as dist
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training import error_broadcast
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
error_broadcast.start(store)
if {fails}:
    error_broadcast._broadcast.tell(UserError("`x` is bad."))
    time.sleep(100)
error_broadcast.stop()
print("ended")
"""


@pytest.mark.parametrize("fails", [True, False])
def test_a_process_ends_wherever_it_is_unless_it_stopped_listening(fails):
    begin = time.monotonic()
    command = [sys.executable, "-c", SCRIPT.format(fails=fails)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90)
    if fails:
        assert result.returncode == 1 and result.stderr.strip().endswith("error: `x` is bad.") and not result.stdout
        assert time.monotonic() - begin < 90
    else:
        assert (result.returncode, result.stdout) == (0, "ended\n")


def fail(rank, main, cfg, kwargs):
    """In place of a training: the second process fails, and is slower to end than those that hear of it."""
    store = dist.FileStore(f"{cfg.folder}/meeting", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    error_broadcast.start(store, kwargs["parent"])
    if rank == 1:
        error_broadcast.tell(UserError("`x` is bad."))
    time.sleep(100)


def test_of_processes_that_this_one_started_it_says_alone_what_they_heard(tmp_path, monkeypatch, capfd):
    from fairseq_mtmoe.training import starting  # fairseq, which the processes do without

    monkeypatch.setattr("fairseq_mtmoe.training.joining.distributed_main", fail)
    with pytest.raises(UserError, match=r"^`x` is bad\.$"):
        starting._spawn(Namespace(folder=tmp_path, distributed_training=Namespace()), None, {}, 2)
    assert "`x` is bad" not in capfd.readouterr().err
