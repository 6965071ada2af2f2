"""Which errors come from losing another process, and how a command ends."""

import subprocess
import sys

import pytest
from torch import distributed as dist
from torch.multiprocessing.spawn import ProcessRaisedException

from fairseq_mtmoe.training import failures

LOST = (
    "[/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:22941.",
    "Wait timeout",
    "NCCL error in: ProcessGroupNCCL.cpp:2006, remote process exited or there was a network error",
)
OTHERS = (
    RuntimeError("out of memory"),
    ValueError("Connection closed by peer"),
    dist.DistBackendError("Duplicate GPU detected : rank 0 and rank 1"),
)


def test_a_lost_process_is_named_and_other_errors_are_no_loss():
    for words in LOST:
        error = Exception("Cannot load model parameters")
        error.__cause__ = RuntimeError(f"{words}\nat line 7")
        sentence = str(failures.lost_process(error))
        assert "lost another process" in sentence and sentence.endswith(f"last.pt. ({words})")
    assert [failures.lost_process(error) for error in OTHERS] == [None] * len(OTHERS)


def test_the_sentence_of_a_spawned_process_is_taken_from_its_traceback():
    report = "-- Process 1 terminated with the following error:\nTraceback:\n  x\n{}: `x` must be 1: not 2.\n"
    for kind, sentence in (("fairseq_mtmoe.core.errors.UserError", "`x` must be 1: not 2."), ("ValueError", "None")):
        assert str(failures.spawned_error(ProcessRaisedException(report.format(kind), 1, 7))) == sentence


SCRIPT = """
import time
from torch import distributed as dist
from fairseq_mtmoe.training.fairseq.patch import Patch
from fairseq_mtmoe.training import failures
Patch("sys.excepthook", failures.showing_sentences, "a test").apply()
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
print("printed")
import threading
failures.several_processes = lambda: True
threading.Thread(target=time.sleep, args=(1,)).start()
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("raise RuntimeError('Connection closed by peer')", "error: Process 0 of 1 lost another process"),
    ],
)
def test_a_process_ends_with_its_error_and_waits_for_nothing(ending, words):
    command = [sys.executable, "-c", SCRIPT.format(ending=ending)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout) == (1, "printed\n")
    assert words in result.stderr and ("Traceback" in result.stderr) == ("1 / 0" in ending)
