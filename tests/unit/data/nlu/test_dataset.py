import json

import numpy as np
import torch
from tokenizers.implementations import BertWordPieceTokenizer

from fairseq_mtmoe.data.mixtures.dataset import EvaluationMixture
from fairseq_mtmoe.data.nlu.cache import tokenized_split
from fairseq_mtmoe.data.nlu.dataset import TaskCollate, TaskDataset
from fairseq_mtmoe.data.nlu.loader import BenchmarkLoader
from fairseq_mtmoe.data.nlu.reading import Example, Span
from fairseq_mtmoe.data.nlu.table import load_tables
from fairseq_mtmoe.data.nlu.tokenizing import TextTokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"]
TOKENIZER = TextTokenizer(
    BertWordPieceTokenizer({word: number for number, word in enumerate(WORDS)})._tokenizer.to_str(), 16
)
SINGLES = [Example((("a b c",),), 1, "0"), Example((("d",),), 0, "1")]
RANKING = [Example((("a", "b c"), ("a", "d")), 1, "0", right=(1,))]
WORD_PAIR = [Example((("a b", "c"),), 0, "0", (Span(0, 2, 3), Span(1, 0, 1)))]


def dataset(examples):
    return TaskDataset(TOKENIZER.tokenize(examples))


def test_sizes_count_what_a_batch_pads():
    assert dataset(SINGLES).sizes.tolist() == [[5], [3]]
    assert dataset(RANKING).sizes.tolist() == [[2 * 6]]


def as_lists(tensors):
    return {task: tensor.tolist() for task, tensor in tensors.items()}


def test_a_mixed_batch():
    datasets = [dataset(SINGLES), dataset(RANKING), dataset(WORD_PAIR)]
    collate = TaskCollate(WORDS.index("[PAD]"), ["one", "two", "three"])
    mixture = EvaluationMixture(["one", "two", "three"], datasets, [7, 8, 9], collate)
    batch = mixture.collater([mixture[index] for index in (0, 3, 2, 1)])
    rows = [" ".join(WORDS[token] for token in row) for row in batch["net_input"]["src_tokens"]]
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
    assert as_lists(batch["net_input"]["rows"]) == {"one": [[0], [4]], "three": [[1]], "two": [[2, 3]]}
    assert as_lists(batch["net_input"]["spans"]) == {"one": [[], []], "three": [[[2, 3], [4, 5]]], "two": [[]]}
    assert as_lists(batch["target"]) == {"one": [1, 0], "three": [0], "two": [[0, 1]]}
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
    names = dataset(open_ranking).split.names
    assert [names[number] for number in range(len(names))] == [*"bcdbbc"]


def test_loading_a_benchmark(tmp_path, write):
    header = "index\tsentence1\tsentence2\tgold_label\n"
    for name in ("dev_matched", "dev_mismatched", "train"):
        write(f"MNLI/{name}.tsv", header + "0\ta\tb\tneutral\n" * len(name))
    record = {"premise": "a", "choice1": "b", "choice2": "c", "question": "cause", "label": 0, "idx": 0}
    for name in ("train", "val"):
        write(f"COPA/{name}.jsonl", json.dumps(record))
    rows = {name: load_tables()[name] for name in ("mnli", "copa")}

    def read(name, row, key):
        return tokenized_split(tmp_path, name, row, key, TOKENIZER, tmp_path / "cache")

    train, valid = (BenchmarkLoader(rows, split, read, TaskDataset) for split in ("train", "valid"))
    assert (train.keys, train.tasks, train.shard_sizes) == (["mnli", "copa"], ["mnli", "copa"], [(5,), (1,)])
    assert (valid.keys, valid.tasks) == (["mnli", "mnli/mismatched", "copa"], ["mnli", "mnli", "copa"])
    assert [len(dataset) for dataset in valid.load()] == [11, 14, 1]
    assert np.array_equal(valid.load()[2].sizes, train.load()[1].sizes)
