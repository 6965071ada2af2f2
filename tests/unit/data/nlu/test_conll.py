"""Sentences with a label for each word, in CoNLL's columns and in lists."""

import json

import pytest

from fairseq_mtmoe.data.nlu.reading import Example, read_split
from fairseq_mtmoe.data.nlu.table import load_tables
from fairseq_mtmoe.errors import UserError

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
    path = write("a.conll", "Ann NNP\n\nran VBD\noff RP\n")
    found = read_split(tmp_path, row, "train", labelled=False)
    assert [(example.words, example.tags, example.label) for example in found] == [
        (("Ann",), (), None), (("ran", "off"), (), None),
    ]  # fmt: skip
    with pytest.raises(UserError, match="line 1: must have a label in the field label to be trained") as error:
        read_split(tmp_path, row, "train")
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        ("Ann N B-x\n\nran V\n", 3, "must have 3 fields, but has 2"),
        ("Ann N B-x\n# a comment inside\n", 2, "must have 3 fields, but has 4"),
        ("# one\n\nAnn N B-x\nran V B-y\n", 4, "the label of 'ran' must be one of O, B-x, I-x, but is 'B-y' instead"),
        ("Ann N B-x\nr\xe9 V O\n".encode("latin-1"), 2, "must be text in utf-8, but has the byte 0xe9"),
    ],
)
def test_wrong_columns(tmp_path, write, row, content, line, says):
    path = write("a.conll", content)
    with pytest.raises(UserError) as error:
        read_split(tmp_path, row, "train")
    assert str(error.value).startswith(f"`{path}`, line {line}: {says}")


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"word": ["a", "b"], "label": ["O"]}, "must have a label for each of 2 words, but has 1"),
        ({"word": [], "label": []}, "must have words, but has none"),
        ({"word": "a b", "label": ["O"]}, "must have in the field word a list of str, but has 'a b'"),
        ({"word": ["a"]}, "must have a label in the field label to be trained"),
    ],
)
def test_wrong_lists(tmp_path, write, row, record, says):
    write("b.jsonl", json.dumps({"word": ["c"], "label": ["O"]}) + "\n" + json.dumps(record))
    with pytest.raises(UserError, match="line 2: ") as error:
        read_split(tmp_path, row, "valid")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("labels: [O,", "labels: [", "mine: labels` must be O, and then B- and I- with an entity's type, but is 'B-x'"),
        ("texts: [word]", "texts: [word, pos]", "mine: texts` must be the field with the words"),
        ("kind: word_labels", "kind: classification", "mine: train: format` must be another one where words have no"),
    ],
)
def test_wrong_rows(write, before, after, says):
    path = write("table.yaml", ROW.replace(before, after))
    with pytest.raises(UserError) as error:
        load_tables([path])
    assert says in str(error.value)
