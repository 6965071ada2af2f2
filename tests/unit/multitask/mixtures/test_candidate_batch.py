"""A step's candidates as a sample: what passes through the model, what can be chosen."""

import numpy as np
import pytest
import torch

from fairseq_mtmoe.multitask.mixtures.candidates import CANDIDATES, DROPOUT_PASS, PASSES, candidate_batch


def item(task, index, length=1):
    return task, {"id": 1000 + index, "index": index, "length": length}


def collate(items):
    return {"id": torch.tensor([example["id"] for _, example in items]), "tasks": [task for task, _ in items]}


def test_examples_travel_without_tensors_and_come_back_as_they_were():
    items = [(0, {**item(0, 4)[1], "source": torch.tensor([5, 6]), "other": np.array([7])}), item(1, 2)]
    candidates = candidate_batch(collate, items, [0, 0])[CANDIDATES]
    assert isinstance(candidates.items[0][1]["source"], np.ndarray)
    ((task, example),) = candidates.examples([0])
    assert task == 0 and example["source"].tolist() == [5, 6] and isinstance(example["source"], torch.Tensor)
    assert isinstance(example["other"], np.ndarray) and candidates.examples([1]) == [item(1, 2)]


def passed(sample):
    return [batch["id"].tolist() for batch in sample[PASSES]]


def test_candidates_pass_shortest_first_and_each_example_once():
    items = [item(0, 7, 5), item(0, 3, 2), item(1, 7, 4), item(1, 7, 4)]
    sample = candidate_batch(collate, items, [0, 0])
    assert sample[CANDIDATES].items == (items[0], items[1], items[2]) and sample[CANDIDATES].count == 2
    assert sample[CANDIDATES].task_C.tolist() == [0, 0, 1]
    assert passed(sample) == [[1, 2, 0]] and DROPOUT_PASS not in sample


def test_what_dropout_tells_passes_under_dropout_alone():
    items = [item(0, 0), item(1, 5, 9), item(1, 6, 3)]
    sample = candidate_batch(collate, items, [0, 3])
    assert passed(sample) == [[0]] and sample[DROPOUT_PASS]["id"].tolist() == [2, 2, 2, 1, 1, 1]
    alone = candidate_batch(collate, items[1:], [0, 3])
    assert passed(alone) == [[0]] and alone[DROPOUT_PASS]["id"].tolist() == [1, 1, 1, 0, 0, 0]
    assert PASSES not in candidate_batch(collate, [item(0, 0)], [3])


@pytest.mark.parametrize("present", [1, 2, 20])
def test_processes_make_as_many_passes_whatever_candidates_they_have(present):
    items = [item(task, index, task) for task in range(present) for index in range(2)]
    sample = candidate_batch(collate, items, [0] * 19 + [3])
    assert len(passed(sample)) == 3 and all(passed(sample)) and len(sample[DROPOUT_PASS]["id"])
    numbers = {number for batch in passed(sample) for number in batch}
    assert numbers == set(range(2 * min(present, 19)))
