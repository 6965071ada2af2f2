"""The training data of an epoch, and resuming in the middle of one."""

import pickle

import numpy as np
import pytest

from fairseq_mtmoe.multitask.mixtures.candidates import CANDIDATES, PASSES
from tests.helpers.digits import digit_task, make_digit_corpus

HEATED = dict(sampling_method="temperature", sampling_temperature=2.0, heating_coefficient=3.0, heating_epochs=5)


def iterator(data, epoch=1, num_workers=0, **options):
    task = digit_task(data, **options)
    task.load_dataset("train", epoch=epoch)
    return task.get_batch_iterator(task.dataset("train"), max_tokens=60, seed=3, epoch=epoch, num_workers=num_workers)


def content(batch):
    if CANDIDATES in batch:
        items = batch[CANDIDATES].items
        return [[(task, example["index"]) for task, example in items], [content(part) for part in batch[PASSES]]]
    return [batch["id"].tolist(), batch["task_ids"].tolist(), batch["target"].tolist()]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    return f"{make_digit_corpus(folder / 'a', seed=1, train=100)}:{make_digit_corpus(folder / 'b', seed=2, train=80)}"


@pytest.mark.parametrize(
    ("options", "stop"),
    [
        (HEATED, 3),
        ({**HEATED, "virtual_epoch_size": 70}, 20),
        ({"sampling_method": "uncertainty", "virtual_epoch_size": 70}, 3),
    ],
)
def test_resuming_in_the_middle_of_an_epoch_continues_the_same_batches(options, stop, digits, shards):
    for data in (str(digits), shards):
        whole, seen = iterator(data, **options), []
        for _ in range(6):
            for batch in whole.next_epoch_itr():
                seen.append(content(batch))
                if len(seen) == stop:
                    state = whole.state_dict()
        resumed, rest = iterator(data, epoch=state["epoch"], **options), []
        resumed.load_state_dict(state)
        while len(rest) < len(seen) - stop:
            rest += map(content, resumed.next_epoch_itr())
        assert rest == seen[stop:]


def test_workers_get_the_same_sentences_without_the_task(digits):
    alone, worked = (iterator(digits, 2, number, **HEATED) for number in (0, 1))
    assert [*map(content, alone.next_epoch_itr())] == [*map(content, worked.next_epoch_itr())]
    assert pickle.loads(pickle.dumps(alone.dataset)).plan is None


def test_shards_take_turns_without_being_loaded_again(shards):
    batches, found = iterator(shards, virtual_epoch_size=90), []
    for _ in range(4):
        list(batches.next_epoch_itr())
        found.append(batches.dataset.datasets[0].src.dataset._path.split("/")[-2])
    assert found == ["a", "a", "b", "b"]


def test_sentences_that_are_too_long_are_left_out_or_refused(digits, caplog):
    task = digit_task(digits)
    task.load_dataset("train")
    dataset, options = task.dataset("train"), {"max_tokens": 60, "max_positions": (8, 1024)}
    with pytest.raises(Exception, match="is invalid"):
        len(task.get_batch_iterator(dataset, **options))
    batches = task.get_batch_iterator(dataset, ignore_invalid_inputs=True, **options).frozen_batches
    kept = np.concatenate(batches)
    lengths = dataset.sizes_of(np.arange(len(dataset)))
    assert len(kept) == (lengths[:, 0] <= 8).sum() and dataset.sizes_of(kept)[:, 0].max() == 8
    assert f"{len(dataset) - len(kept)} samples have invalid sizes and will be skipped" in caplog.text
