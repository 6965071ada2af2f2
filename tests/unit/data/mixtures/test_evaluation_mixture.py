"""Validation data: every sentence once, every batch of one task, with that task's ids."""

import itertools
from collections import Counter

import pytest

from tests.helpers.digits import PAIRS, digit_task


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


@pytest.mark.parametrize("options", [{}, {"decoder_langtok": True, "lang_tok_replacing_bos_eos": True}])
def test_language_tokens_are_the_pairs(options, digits):
    task = digit_task(digits, **options)
    for batch in batches(task):
        token = task.source_dictionary.index(f"__{batch['task'].split('-')[1]}__")
        tokens, lengths = batch["net_input"]["src_tokens"], batch["net_input"]["src_lengths"]
        first = tokens.gather(1, tokens.shape[1] - lengths[:, None])
        assert (tokens[:, -1:] if options else first).eq(token).all()


def test_the_order_does_not_change_between_validations(digits):
    task = digit_task(digits)
    first, second = ([batch["id"].tolist() for batch in batches(task)] for _ in range(2))
    assert first == second
    valid = task.dataset("valid")
    assert task.get_batch_iterator(valid, max_tokens=80) is task.get_batch_iterator(valid, max_tokens=80)
