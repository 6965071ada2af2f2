"""The worker processes that load batches end with their epoch or validation: no garbage collection is waited for."""

import gc
import multiprocessing

import pytest
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
