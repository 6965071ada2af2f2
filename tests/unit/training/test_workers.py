"""The worker processes that load batches end with their epoch or validation: no garbage collection is waited for."""

import gc
import multiprocessing
import threading

import pytest
from fairseq.data.iterators import BackgroundConsumer
from fairseq.tasks.fairseq_task import FairseqTask

from fairseq_mtmoe.training.trainer import SparseTrainer
from tests.helpers.digits import make_digit_corpus
from tests.helpers.training import train_here

STOCK = (
    "--task", "translation_multi_simple_epoch", "--lang-pairs", "en-aa,en-bb,en-cc", "--encoder-langtok", "tgt",
    "--sampling-method", "temperature",
)  # fmt: skip


@pytest.mark.parametrize(("task", "buffered"), [((), 4), (STOCK, 0)], ids=["ours", "stock"])
def test_workers_end_with_their_epoch(task, buffered, tmp_path, monkeypatch):
    data = make_digit_corpus(tmp_path / "data", train=160, valid=8, test=8)
    alive = {"training": [], "validation": []}
    train_step, valid_step = SparseTrainer.train_step, FairseqTask.valid_step

    def counting(kind, step):
        def counted(*args, **kwargs):
            alive[kind].append(len(multiprocessing.active_children()))
            return step(*args, **kwargs)

        return counted

    monkeypatch.setattr(SparseTrainer, "train_step", counting("training", train_step))
    monkeypatch.setattr(FairseqTask, "valid_step", counting("validation", valid_step))
    gc.disable()
    try:
        train_here(
            data, tmp_path / "run", *task, "--num-workers", 1, "--data-buffer-size", buffered, "--no-save",
            "--max-epoch", 5, "--virtual-epoch-size", 60, "--max-tokens", 300, "--required-batch-size-multiple", 1,
        )  # fmt: skip
    finally:
        gc.enable()
    for counts in alive.values():  # a worker of the epoch, one of the validation, and one that is about to end
        assert len(counts) >= 4 and max(counts) <= 3 and counts[-1] <= counts[0] + 1


def test_a_run_that_ends_within_an_epoch_leaves_no_thread_that_loads(tmp_path):
    """An interpreter that ends beside one may crash in it."""
    data = make_digit_corpus(tmp_path / "data", train=160, valid=4, test=4)
    options = ("--data-buffer-size", 2, "--max-update", 2, "--max-tokens", 120, "--no-save", "--disable-validation")
    before = set(threading.enumerate())  # other tests leave such threads in this process
    train_here(data, tmp_path / "run", *options)
    left = set(threading.enumerate()) - before
    assert not [thread for thread in left if isinstance(thread, BackgroundConsumer)]
