"""The place in an epoch: a run that goes on sees every sentence once, whatever limits its batches have."""

import itertools
import shutil

import pytest
from fairseq import checkpoint_utils

from tests.helpers.refused import refused
from tests.helpers.scheduled import rarely
from tests.helpers.trainers import trainer_here
from tests.helpers.training import train_here

STOCK = ("--task", "translation", "--arch", "transformer_tiny", "--source-lang", "en", "--target-lang", "aa")
PAIRS = ("--task", "translation_multi_simple_epoch", "--arch", "transformer_tiny", "--lang-pairs", "en-aa,en-bb,en-cc")
ROUND_ROBIN = (*PAIRS, "--encoder-langtok", "tgt", "--sampling-method", "RoundRobin")
TASKS = {
    "a mixture": (),
    "a mixture in parts": ("--heating-coefficient", 3, "--heating-updates", 8),
    "candidates": ("--sampling-method", "uncertainty"),
    "a task of fairseq's": STOCK,
    "a task that keeps its iterator": ROUND_ROBIN,
}
LIMITS = (
    ("--max-tokens", 300),
    ("--max-tokens", 100, "--batch-size", 7),
    ("--max-tokens", 500),
)
SEEDS = (("--seed", 3), ("--seed", 4), ("--seed", 1, "--update-ordered-indices-seed"))


def resumed(data, folder, options):
    """Return a trainer and its iterator at the place of the checkpoint, or at the beginning."""
    trainer = trainer_here(data, folder, *options)
    return trainer, checkpoint_utils.load_checkpoint(trainer.cfg.checkpoint, trainer)[1]


def take(batches, count=None):
    """Return the sentences of the next batches: the numbers by which the epoch draws them."""
    list(itertools.islice(batches.next_epoch_itr(), count))
    return [list(map(int, batch)) for batch in batches.epoch_batch_sampler.batches[:count]]


@pytest.mark.parametrize("task", rarely(TASKS, "a mixture in parts", "candidates", "a task that keeps its iterator"))
def test_other_limits_and_seeds_in_mid_epoch_leave_no_sentence_out_and_repeat_none(task, corpus, tmp_path, caplog):
    options = (*TASKS[task], "--required-batch-size-multiple", 1)
    whole = take(resumed(corpus, tmp_path / "whole", (*options, *LIMITS[0]))[1])
    seen = []
    for limits, seed in zip(LIMITS, SEEDS, strict=True):
        limits += seed if TASKS[task] == STOCK else ()
        trainer, batches = resumed(corpus, tmp_path / "run", (*options, *limits))
        part = take(batches, None if seed == SEEDS[-1] else 2)
        seen += itertools.chain.from_iterable(part)
        trainer.consolidate_optimizer()
        state = {"train_iterator": batches.state_dict(), "val_loss": None}
        trainer.save_checkpoint(str(tmp_path / "run" / "checkpoint_last.pt"), state)
        if task == "a mixture":
            assert batches.dataset.batch_counts == [len(batches.frozen_batches)]
            assert batches.dataset.updates_of_epoch == len(batches.frozen_batches)
    assert sorted(seen) == sorted(itertools.chain.from_iterable(whole))
    assert "--max-tokens was 300 and is 100, --batch-size was None and is 7" in caplog.text
    if TASKS[task] != STOCK:
        following = take(batches)
        assert following == take(resumed(corpus, tmp_path / "run", (*options, *limits))[1])
        assert len(part) < len(following)  # as full as those of a whole epoch


def test_an_epoch_with_too_few_batches_for_an_update(corpus, tmp_path, caplog):
    options = ("--max-tokens", 300, "--disable-validation")
    train_here(corpus, tmp_path, *options, "--max-update", 2)
    shutil.copytree(tmp_path, tmp_path / "more")
    rest = train_here(corpus, tmp_path, *options, "--max-epoch", 1, "--update-freq", 50)
    assert len(rest["losses"]) == 1  # of all that is left
    options = (*options, "--skip-remainder-batch", "--update-freq")
    freq = len(resumed(corpus, tmp_path / "new", (*options, 1))[1].frozen_batches) - 1
    assert len(train_here(corpus, tmp_path / "more", *options, freq, "--max-epoch", 2)["losses"]) == 1
    assert "the rest of epoch 1 has no batches for an update, and is skipped" in caplog.text
    with refused("--skip-remainder-batch", "--update-freq", first=False):
        train_here(corpus, tmp_path / "new", *options, 50, "--max-epoch", 1)
