"""Batches of several tasks' examples, and shares of a task's examples."""

from dataclasses import fields
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from fairseq_mtmoe.multitask.mixtures.dataset import EvaluationMixture
from fairseq_mtmoe.nlu.data.dataset import TaskCollate, TaskDataset
from fairseq_mtmoe.nlu.data.loader import few_of, shares_of
from fairseq_mtmoe.nlu.data.reading import Example, Span
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer
from fairseq_mtmoe.nlu.data.windows import tokenize_windows
from tests.helpers.benchmark import PIECES, serialized_tokenizer
from tests.helpers.refused import refused

TOKENIZER = TextTokenizer(serialized_tokenizer(), 16)
SINGLES = [Example((("a b c",),), 1, "0"), Example((("d",),), 0, "1")]
RANKING = [Example((("a", "b c"), ("a", "d")), 1, "0", right=(1,))]
WORD_PAIR = [Example((("a b", "c"),), 0, "0", (Span(0, 2, 3), Span(1, 0, 1)))]


def dataset(examples):
    return TaskDataset(TOKENIZER.tokenize(examples))


def test_a_mixed_batch():
    datasets = [dataset(SINGLES), dataset(RANKING), dataset(WORD_PAIR)]
    assert [one.sizes.tolist() for one in datasets[:2]] == [[[5], [3]], [[2 * 6]]]  # what a batch pads
    collate = TaskCollate(PIECES.index("[PAD]"), ["one", "two", "three"])
    mixture = EvaluationMixture(["one", "two", "three"], datasets, [7, 8, 9], collate)
    batch = mixture.collater([mixture[index] for index in (0, 3, 2, 1)])
    rows = [" ".join(PIECES[token] for token in row) for row in batch["net_input"]["src_tokens"]]
    assert rows == [
        "[CLS] a b c [SEP] [PAD]",
        "[CLS] a b [SEP] c [SEP]",
        "[CLS] a [SEP] b c [SEP]",
        "[CLS] a [SEP] d [SEP] [PAD]",
        "[CLS] d [SEP] [PAD] [PAD] [PAD]",
    ]
    assert batch["net_input"]["segments"].tolist() == [
        [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0],
    ]  # fmt: skip
    for tensors, found in (
        (batch["net_input"]["rows"], {"one": [[0], [4]], "three": [[1]], "two": [[2, 3]]}),
        (batch["net_input"]["spans"], {"one": [[], []], "three": [[[2, 3], [4, 5]]], "two": [[]]}),
        (batch["target"], {"one": [1, 0], "three": [0], "two": [[0, 1]]}),
    ):
        assert {task: tensor.tolist() for task, tensor in tensors.items()} == found
    assert all(labels.dtype == torch.float64 for labels in batch["target"].values())  # which fairseq never rounds
    assert batch["candidates"].tolist() == [1, 1, 2, 1]
    assert batch["task_ids"].tolist() == [7, 9, 8, 7]
    assert (batch["nsentences"], batch["ntokens"]) == (4, 5 + 6 + 6 + 5 + 3)


def test_rankings_of_different_numbers_of_candidates():
    open_ranking = [
        Example((("a", "b"), ("a", "c"), ("a", "d")), 0, "0", right=(0, 2), names=("b", "c", "d")),
        Example((("a", "b"),), 0, "1", right=(0,), names=("b",)),
        Example((("e", "b"), ("e", "c")), None, "2", names=("b", "c")),
    ]
    mixture = EvaluationMixture(["one"], [dataset(open_ranking)], [0], TaskCollate(0, ["one"]))
    batch = mixture.collater([mixture[1], mixture[0], mixture[2]])
    assert batch["net_input"]["rows"]["one"].tolist() == [[0, -1, -1], [1, 2, 3], [4, 5, -1]]
    alone, three, unknown = batch["target"]["one"].tolist()
    assert (alone[0], three) == (1, [1, 0, 1]) and np.isnan([*alone[1:], *unknown]).all()
    assert batch["target"]["one"].dtype == torch.float64


def word_pair(n, texts):
    return Example(((texts[0], "c"),), n % 3, str(n), (Span(0, 0, 1), Span(1, 0, 1)))


def ranking(n, texts):
    candidates = tuple(pairwise(texts))
    return Example(candidates, n % 2, str(n), right=(n % 2,), names=tuple("abcd"[: len(candidates)]))


def question(n, texts):
    return Example((("a", " ".join(texts)),), None, str(n), (Span(1, 0, 1),))


@pytest.mark.parametrize("make", [word_pair, ranking, question])
def test_what_is_kept_is_as_if_it_was_tokenized_alone(make):
    draw = np.random.default_rng(5)
    texts = [[" ".join(draw.choice(PIECES[4:14], draw.integers(1, 6))) for _ in range(3 + n % 3)] for n in range(200)]
    examples = list(map(make, range(200), texts))
    tokenize = partial(tokenize_windows, TOKENIZER, stride=3) if make is question else TOKENIZER.tokenize
    few = few_of(tokenize(examples), 0.1, seed=1, is_regression=False)
    alone = tokenize([examples[int(key)] for key in few.keys_E])
    assert len(few) == 20
    assert make is question or np.bincount(few.labels_E.astype(int)).min() >= 6
    for field in fields(few):
        found, expected = (np.asarray(getattr(split, field.name)) for split in (few, alone))
        is_same = found.dtype == expected.dtype and (found == expected) | (found != found)
        assert np.all(is_same), field.name


def test_shares_of_tasks():
    shares = {None: (1, 1), "0.1": (0.1, 0.1), "mnli=0.1,rte=0.5": (0.1, 0.5), "rte=1e-3,0.2": (0.2, 1e-3)}
    for text, (mnli, rte) in shares.items():
        assert shares_of(text, ["mnli", "rte"]) == {"mnli": mnli, "rte": rte}
    for wrong in ("0", "half", "cola=0.1"):
        with refused("--train-share"):
            shares_of(wrong, ["mnli", "rte"])
