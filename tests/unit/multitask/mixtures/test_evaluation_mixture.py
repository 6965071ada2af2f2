"""Validation data: every sentence once, every batch of one task, with that task's ids."""

import itertools
import shutil
from collections import Counter

import numpy as np

from fairseq_mtmoe.multitask.mixtures.dataset import BatchLimits, batches_of
from fairseq_mtmoe.report.run_log import read
from tests.helpers.digits import PAIRS, digit_dictionary, digit_task, write_digits
from tests.helpers.refused import refused
from tests.helpers.training import train_here


def batches(task, split="valid", **options):
    task.load_dataset(split)
    iterator = task.get_batch_iterator(task.dataset(split), max_tokens=80, required_batch_size_multiple=8, **options)
    return list(iterator.next_epoch_itr(shuffle=False))


def test_each_batch_is_of_one_pair_and_no_sentence_is_missing(digits):
    task = digit_task(digits, enable_lang_ids=True)
    counts, loaded = Counter(), batches(task)
    assert [pair for pair, _ in itertools.groupby(batch["task"] for batch in loaded)] == list(PAIRS)
    for batch in loaded:
        counts[batch["task"]] += batch["nsentences"]
        target = batch["task"].split("-")[1]
        assert {task.task_names[number] for number in batch["task_ids"].tolist()} == {target}
        assert {task.data_manager.lang_dict[int(number)] for number in batch["tgt_lang_id"]} == {target}
    assert counts == dict.fromkeys(PAIRS, 21)
    again = batches(task)  # of the next validation
    assert [batch["id"].tolist() for batch in again] == [batch["id"].tolist() for batch in loaded]


def test_any_first_batches_have_their_share_of_pairs_and_lengths_if_a_validation_does_not_take_all(digits, tmp_path):
    data = shutil.copytree(digits, tmp_path / "data")
    sentences = [np.resize([1, 2, 3], length) for length in range(1, 21) for _ in range(60)]
    for side in ("en", "aa"):
        write_digits(f"{data}/valid.en-aa.{side}", sentences, digit_dictionary())
    short = digit_task(data, save_dir=str(tmp_path))
    short._run = {"options": {"max_valid_steps": 20}}
    few, whole = batches(short), batches(digit_task(data))
    assert sorted(batch["id"].tolist() for batch in few) == sorted(batch["id"].tolist() for batch in whole)
    counts = Counter(batch["task"] for batch in whole)
    assert counts["en-aa"] > 10 * counts["en-bb"] > 10
    for first in range(len(few) + 1):
        found = Counter(batch["task"] for batch in few[:first])
        assert all(abs(found[pair] - first * counts[pair] / len(few)) < 2 for pair in PAIRS)
    lengths = [batch["target"].shape[1] for batch in few if batch["task"] == "en-aa"]
    assert abs(np.mean(lengths[: len(lengths) // 4]) - np.mean(lengths)) < 3 and max(lengths) > 2 * min(lengths)


def test_a_validation_of_few_batches_has_figures_of_all_pairs(digits, tmp_path):
    train_here(digits, tmp_path, "--max-update", 1, "--max-valid-steps", 2, "--batch-size-valid", 4, "--no-save")
    (event,) = (event for event in read(tmp_path) if event["event"] == "valid")
    assert set(event["pairs"]) == set(PAIRS)


def test_no_example_is_dropped_from_batches_and_one_that_does_not_fit_is_refused():
    lengths = np.array([1, 2, 2, 3, 4, 4, 4, 5, 5, 5, 8])
    batches = batches_of(np.arange(20, 31), lengths, BatchLimits(20, 4, 2))
    assert [batch.tolist() for batch in batches] == [[20, 21, 22, 23], [24, 25, 26, 27], [28, 29], [30]]
    with refused("--max-tokens"):
        batches_of(np.arange(11), lengths, BatchLimits(7))
