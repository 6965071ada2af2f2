"""A process that fails, is killed or falls silent ends the others soon, with a sentence."""

import time

import pytest

from tests.helpers.commands import start_command, training_arguments
from tests.helpers.digits import make_digit_corpus
from tests.kill.runs import free_address

TIMEOUT = 15  # seconds of `--distributed-timeout`, which a busy machine may need to start both processes
PATIENCE = 10  # seconds that an end may take beyond it

# Before fairseq-train in one of two processes: at the third call of a method of the trainer something happens. The
# place is the method's name, the happening a statement, of the second process unless it asks.
BEFORE = """
import os, signal, time
import fairseq_mtmoe
fairseq_mtmoe.register()
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.training.trainer import SparseTrainer

rank, place, happening, folder = {values!r}
original, calls = getattr(SparseTrainer, place), []

def method(*args, **kwargs):
    calls.append(1)
    if len(calls) == 3 and (rank == 1 or "rank" in happening):
        open(folder + "/happened", "w").write(str(time.time()))
        exec(happening)
    return original(*args, **kwargs)

setattr(SparseTrainer, place, method)
"""
HAPPENINGS = {
    "raises": "raise ValueError('a bug')",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "is silent": "time.sleep(1000)",
    "is not waited for": "raise UserError('The disk is full.') if rank else time.sleep(1000)",
    "has no disk": "raise UserError('The disk is full.') if rank == 0 else 0",
}
PLACES = {
    "in a step": ("train_step", ()),
    "in a validation": ("valid_step", ("--validate-interval-updates", 1)),
    "before sparsification": ("train_step", ("--dense-updates", 2)),
}
CASES = [("raises", "in a step"), ("is killed", "in a validation"), ("is silent", "before sparsification")]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make_digit_corpus(tmp_path_factory.mktemp("digits"), train=200, valid=40, test=4)


@pytest.mark.parametrize(("happening", "place"), CASES)
def test_the_other_process_ends_soon_and_says_why(happening, place, corpus, tmp_path):
    method, options = PLACES[place]
    options = ("--num-experts", 4, "--max-tokens", 120, "--distributed-timeout", TIMEOUT, *options)
    first, second = (start(rank, method, happening, corpus, tmp_path, *options) for rank in range(2))
    with first, second:
        code = first.wait(90)
        took = time.time() - float((tmp_path / "happened").read_text())
        message = first.err()
    assert code == 1, message[-2000:]
    assert took < TIMEOUT + PATIENCE
    last = message.strip().splitlines()[-1]
    assert "error: Process 0 of 2 lost another process" in last and "go on from checkpoint_last.pt" in last
    assert f"within {TIMEOUT} seconds" in last
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("happening", "method"), [("is not waited for", "train_step"), ("has no disk", "save_checkpoint")]
)
def test_the_first_sentence_ends_all_wherever_they_are(happening, method, corpus, tmp_path):
    """One sleeps, as it would in an exchange on a GPU; of a dense model only the first process saves."""
    options = ("--arch", "base_dense_tiny", "--max-tokens", 120, "--save-interval-updates", 1)
    options = (*options, "--distributed-init-method", free_address())  # the first process has the store
    first, second = (start(rank, method, happening, corpus, tmp_path, *options) for rank in range(2))
    with first, second:
        codes = [first.wait(90), second.wait(90)]
        took = time.time() - float((tmp_path / "happened").read_text())
        messages = [first.err(), second.err()]
    assert codes == [1, 1]
    assert [message.strip().splitlines()[-1].endswith("error: The disk is full.") for message in messages] == [True] * 2
    assert took < PATIENCE and not any("Traceback" in message for message in messages)


def start(rank, method, happening, corpus, folder, *options):
    """One of two processes of `fairseq-train`."""
    joined = (
        "--distributed-backend", "gloo", "--distributed-world-size", 2, "--distributed-no-spawn",
        "--distributed-init-method", f"file://{folder}/meeting", "--distributed-rank", rank,
    )  # fmt: skip
    before = BEFORE.format(values=(rank, method, HAPPENINGS[happening], str(folder)))
    return start_command("fairseq-train", *training_arguments(corpus, folder, *joined, *options), before=before)
