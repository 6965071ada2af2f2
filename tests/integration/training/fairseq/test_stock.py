"""fairseq's own tasks and trainers with the plugin registered: what is not ours stays as in fairseq."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from fairseq_mtmoe.training import stopping
from tests.helpers.commands import ENVIRONMENT, REPOSITORY, training_arguments
from tests.helpers.digits import digit_fixture, digit_task
from tests.helpers.training import configured, train_here

corpus = digit_fixture(train=100, valid=8, test=4)
STOCK = ("--task", "translation", "--source-lang", "en", "--target-lang", "aa", "--arch", "transformer_tiny",
         "--max-tokens", 220, "--dropout", 0.1)  # fmt: skip


class OtherTrainer(Trainer):
    """A user's own trainer, with further arguments and nothing of ours."""

    def __init__(self, *args, **kwargs):
        self.steps, self.handlers = 0, signal.getsignal(signal.SIGTERM)
        super().__init__(*args, **kwargs)

    def train_step(self, samples, raise_oom=False):
        self.steps += 1
        assert signal.getsignal(signal.SIGTERM) is self.handlers is not None
        return super().train_step(samples, raise_oom)


def weights_of(folder):
    return checkpoint_utils.load_checkpoint_to_cpu(str(folder / "checkpoint_last.pt"))["model"]


def test_another_subclass_of_the_trainer_trains_and_goes_on_as_ours_does(corpus, tmp_path, monkeypatch):
    from fairseq_cli import train

    train_here(corpus, tmp_path / "ours", *STOCK, "--max-update", 4, "--save-interval-updates", 2)
    monkeypatch.setattr(train, "Trainer", OtherTrainer)
    before = signal.getsignal(signal.SIGTERM)
    for updates in (2, 4):
        stopped = "--max-update", updates, "--save-interval-updates", 2
        cfg = configured(training_arguments(corpus, tmp_path / "other", *STOCK, *stopped))
        with stopping.watched():
            train.main(cfg)
            assert signal.getsignal(signal.SIGTERM) is before
    ours, others = weights_of(tmp_path / "ours"), weights_of(tmp_path / "other")
    assert ours.keys() == others.keys()
    assert all(torch.equal(ours[name], others[name]) for name in ours)


def test_our_tasks_leave_out_no_rest_of_a_multiple_of_8(corpus):
    task = digit_task(corpus, source_lang="en", target_lang="aa")
    task.load_dataset("train")
    dataset = task.dataset("train")
    batches = dataset.batch_by_size(dataset.ordered_indices(), 150, None, 8)
    assert sorted(np.concatenate(batches)) == list(range(100))


# ---- fairseq's own tests ----

CHECKOUT = os.environ.get("FAIRSEQ_CHECKOUT", "")  # a clone of fairseq, whose packages do not have its tests
NAMES = Path(__file__).with_name("fairseq_tests.txt").read_text().split()
TRUSTED = "fconv,fconv_iwslt_de_en"
WITH_PLUGIN = "import sys, fairseq_mtmoe, pytest; fairseq_mtmoe.register(); sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.scheduled
@pytest.mark.skipif(not CHECKOUT, reason="FAIRSEQ_CHECKOUT names no clone of fairseq")
def test_fairseqs_own_tests_pass_with_the_plugin():
    """Those that pass with the installed versions, and others that need the plugin to load their checkpoints."""
    environment = ENVIRONMENT | {"PYTHONPATH": str(REPOSITORY), "MTMOE_TRUST": TRUSTED}
    command = [sys.executable, "-c", WITH_PLUGIN, "-q", "-p", "no:cacheprovider", *NAMES]
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]
