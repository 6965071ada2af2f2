"""Several tasks under one index, with tasks that have nothing to do with languages."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import FairseqDataset

import fairseq_mtmoe
from fairseq_mtmoe.data.mixtures.dataset import batches_of
from fairseq_mtmoe.data.mixtures.training import TrainingMixture
from fairseq_mtmoe.data.sampling.plan import SamplingPlan
from fairseq_mtmoe.data.sampling.schedule import Schedule
from tests.helpers.refused import refused


class Numbers(FairseqDataset):
    """Examples of three sides, `n` and its double and triple, of as many tokens."""

    def __init__(self, count):
        self.sizes = np.array([[n, 2 * n, 3 * n] for n in range(1, count + 1)])

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return {"id": index, "value": index + 1}


def by_value(datasets, items):
    """Largest value first: another order than the items'."""
    rows = sorted((item for _, item in items), key=lambda item: -item["value"])
    return {key: torch.tensor([row[key] for row in rows]) for key in ("id", "value")}


class Loader:
    split, kind, keys, shard_sizes = "train", "task", ("a", "b"), ((9,), (5,))

    def load(self, shards=None):
        return [Numbers(9), Numbers(5)]


def test_examples_are_drawn_ordered_and_batched():
    dataset = TrainingMixture(Loader(), SamplingPlan(Loader.shard_sizes, Schedule(), seed=1), (0, 1), by_value)
    order = dataset.order(max_sizes=3 * 8)
    batches = [dataset.collater([dataset[i] for i in batch]) for batch in dataset.batches(order, 3 * 16, None, 1)]
    assert [batch["value"].tolist() for batch in batches] == [[3, 2, 2, 1, 1], [4, 4, 3], [5, 5], [7, 6], [8]]
    assert [dataset[i][1]["value"] for i in order.too_long] == [9] and order.counts.tolist() == [9, 5]


def test_no_example_is_dropped_from_batches_and_one_that_does_not_fit_is_refused():
    lengths = np.array([1, 2, 2, 3, 4, 4, 4, 5, 5, 5, 8])
    batches = batches_of(np.arange(20, 31), lengths, 20, 4, 2)
    assert [batch.tolist() for batch in batches] == [[20, 21, 22, 23], [24, 25, 26, 27], [28, 29], [30]]
    with refused("--max-tokens"):
        batches_of(np.arange(11), lengths, 7)


@pytest.mark.parametrize("room", ["data/mixtures", "data/sampling", "tasks/_multitask"])
def test_what_tasks_of_all_kinds_share_knows_nothing_of_languages(room):
    """But that translation's tasks are language pairs, which the explanations give as an example."""
    for file in (Path(fairseq_mtmoe.__file__).parent / room).glob("*.py"):
        code = re.sub(r'""".*?"""|#[^\n]*', "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.findall(r"(?<![a-z])(?:langs?|languages?|pairs?|sources?|targets?|tiers?)(?![a-z])", code), file
