"""Which errors come from losing another process, and how a run ends."""

import re
import subprocess
import sys

import pytest
from torch import distributed as dist

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.fairseq_patches.excepthook import raised_in_spawned
from fairseq_mtmoe.training import rank_failures

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
    monkeypatch.setattr(rank_failures, "several_processes", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)


@pytest.mark.parametrize("words", LOST)
def test_a_lost_process_is_named(words, joined):
    sentence = r"^Process 0 of 2 lost another process.*checkpoint_last\.pt\. \(" + re.escape(words) + r"\)$"
    with pytest.raises(UserError, match=sentence), rank_failures.naming_lost_processes():
        raise Exception("Cannot load model parameters") from RuntimeError(words)


def test_what_the_library_said_is_said_on(joined):
    lost = rank_failures.lost_process(dist.DistNetworkError("The host is down.\nat line 7"))
    assert str(lost).endswith("(The host is down.)")


def test_a_fault_of_this_process_alone_is_no_loss(joined):
    assert rank_failures.lost_process(dist.DistBackendError("Duplicate GPU detected : rank 0 and rank 1")) is None


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_other_errors_stay_as_they_are(error, joined):
    with pytest.raises(type(error)) as raised, rank_failures.naming_lost_processes():
        raise error
    assert raised.value is error


def test_in_one_process_no_error_is_a_loss():
    assert rank_failures.lost_process(RuntimeError(LOST[0])) is None


SCRIPT = """
import sys
from fairseq_mtmoe.fairseq_patches.excepthook import showing_sentences
from fairseq_mtmoe.fairseq_patches.patch import Patch
from fairseq_mtmoe.training import rank_failures
patch = Patch("sys.excepthook", (showing_sentences,), "a test")
patch.apply(); patch.apply()
from torch import distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
rank_failures.several_processes = lambda: True
print("printed")
{error}
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("raise RuntimeError('Connection closed by peer')", "error: Process 0 of 1 lost another process"),
        ("raise ZeroDivisionError('a bug')", "ZeroDivisionError: a bug"),
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
    for name in (UserError, rank_failures.LostProcess):
        text = f"\n-- Process 0 terminated:\nTraceback …\n{name.__module__}.{name.__name__}: `x` is bad.\n"
        assert str(raised_in_spawned(kind(text))) == "`x` is bad."
    assert raised_in_spawned(ValueError(text)) is None
