"""Sentences with a label for each word, in CoNLL's columns and in lists."""

import json

import pytest

from fairseq_mtmoe.data.nlu.reading import Example, read_split
from fairseq_mtmoe.data.nlu.table import load_tables
from tests.helpers.refused import refused

ROW = """
mine:
  title: Mine
  description: Label words.
  kind: word_labels
  texts: [word]
  label: label
  labels: [O, B-x, I-x]
  metric: entity-f1
  splits: {train: [{file: a.conll, format: conll, columns: [word, pos, label]}],
           valid: [{file: b.jsonl, format: jsonl}]}
"""


@pytest.fixture
def row(write):
    return load_tables([write("table.yaml", ROW)])["mine"]


def sentence(*pairs, key="0"):
    words, tags = zip(*pairs, strict=True)
    return Example(((" ".join(words),),), int(any(tags)), key, words=words, tags=tags)


def test_columns_comments_and_ends_of_sentences(tmp_path, write, row):
    lines = [
        "-DOCSTART- -X- O", "", "# id = 1 of a newspaper", "# text = Ann", "Ann NNP B-x", "Lee  NNP I-x", "# SYM O", "",
        "\t", "  ", "# SYM O\r", "-DOCSTART- -X- O", "\xa0 X O", "New York\tNNP\tB-x", "#\t#\tO", "end NN O",
    ]  # fmt: skip
    write("a.conll", "\ufeff" + "\n".join(lines))
    assert read_split(tmp_path, row, "train") == [
        sentence(("Ann", 1), ("Lee", 2), ("#", 0)),
        sentence(("#", 0), key="1"),
        sentence(("\xa0", 0), ("New York", 1), ("#", 0), ("end", 0), key="2"),
    ]


def test_the_last_column_may_be_missing_in_data_to_predict(tmp_path, write, row):
    write("a.conll", "Ann NNP\n\nran VBD\noff RP\n")
    found = read_split(tmp_path, row, "train", labelled=False)
    assert [(example.words, example.tags, example.label) for example in found] == [
        (("Ann",), (), None), (("ran", "off"), (), None),
    ]  # fmt: skip
    with refused("a.conll", "mtmoe predict"):
        read_split(tmp_path, row, "train")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("Ann N B-x\n\nran V\n", 3),
        ("Ann N B-x\n# a comment inside\n", 2),
        ("# one\n\nAnn N B-x\nran V B-y\n", 4),
        ("Ann N B-x\nr\xe9 V O\n".encode("latin-1"), 2),
    ],
)
def test_wrong_columns(tmp_path, write, row, content, line):
    write("a.conll", content)
    with refused("a.conll") as caught:
        read_split(tmp_path, row, "train")
    assert f", line {line}: " in str(caught.value)


@pytest.mark.parametrize(
    "record",
    [{"word": ["a", "b"], "label": ["O"]}, {"word": [], "label": []}, {"word": "a b", "label": ["O"]}, {"word": ["a"]}],
)
def test_wrong_lists(tmp_path, write, row, record):
    write("b.jsonl", json.dumps({"word": ["c"], "label": ["O"]}) + "\n" + json.dumps(record))
    with refused("b.jsonl") as caught:
        read_split(tmp_path, row, "valid")
    assert ", line 2: " in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ("labels: [O,", "labels: [", "labels"),
        ("texts: [word]", "texts: [word, pos]", "texts"),
        ("kind: word_labels", "kind: classification", "train: format"),
    ],
)
def test_wrong_rows(write, before, after, field):
    with refused(f"table.yaml: mine: {field}"):
        load_tables([write("table.yaml", ROW.replace(before, after))])
