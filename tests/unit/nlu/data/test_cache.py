import json
import os
from dataclasses import fields, replace

import numpy as np
import pytest

from fairseq_mtmoe.nlu.data import cache as module
from fairseq_mtmoe.nlu.data.cache import tokenized_split
from fairseq_mtmoe.nlu.data.reading import TaskSet
from fairseq_mtmoe.nlu.data.table import Format, Source, load_tables
from fairseq_mtmoe.nlu.data.tokenizing import TextTokenizer
from tests.helpers.benchmark import serialized_tokenizer
from tests.helpers.refused import refused

ROWS = load_tables()
HEADER = "index\tsentence1\tsentence2\tlabel\n"
SERIALIZED = serialized_tokenizer()


@pytest.fixture
def data(tmp_path, write):
    write("RTE/train.tsv", HEADER + "0\ta b\tc\tentailment\n1\td\te\tnot_entailment\n")
    write("RTE/dev.tsv", HEADER + "0\ta\tc\tentailment\n")
    return tmp_path


@pytest.fixture
def reads(monkeypatch):
    read, splits = module.read_split, []
    monkeypatch.setattr(module, "read_split", lambda *args: splits.append(args[0].split) or read(*args))
    return splits


def load(data, split="train", length=16, serialized=SERIALIZED, row=ROWS["rte"], **options):
    task_set = TaskSet(data, "rte", row, split)
    return tokenized_split(task_set, TextTokenizer(serialized, length), data / "cache", **options)


def test_a_split_is_made_once_and_what_it_depends_on_makes_it_anew(data, write, reads):
    made, found = load(data), load(data)
    for field in fields(made):
        assert np.array_equal(getattr(made, field.name), getattr(found, field.name)), field.name
    assert found.num_truncated == 0 and isinstance(found.num_truncated, int) and reads == ["train"]
    load(data, length=8)
    load(data, split="valid")
    load(data, labelled=False)
    load(data, serialized=SERIALIZED.replace('"a":', '"k":'))
    load(data, row=replace(ROWS["rte"], texts=["sentence2", "sentence1"]))
    path = write("RTE/train.tsv", HEADER + "0\ta b\tc\tentailment\n1\td\te\tentailment\n2\td\te\tentailment\n")
    assert len(load(data)) == 3
    state = path.stat()
    path.write_text(path.read_text().replace("d\te", "e\td"))  # as many bytes
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    load(data)
    assert reads == ["train"] * 2 + ["valid"] + ["train"] * 5
    load(data)
    assert len(reads) == 8


def test_damaged_files_are_made_anew_and_a_folder_that_cannot_be_written_to_is_no_error(data, reads, caplog):
    made = load(data)
    (path,) = (data / "cache").iterdir()
    for damage in (b"PK\x03\x04 nothing", path.read_bytes()[:200]):
        path.write_bytes(damage)
        assert np.array_equal(load(data).tokens_T, made.tokens_T)
        assert np.array_equal(load(data).tokens_T, made.tokens_T)
    assert "is damaged and will be rebuilt" in caplog.text and len(reads) == 3
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("a file")
    assert len(load(data)) == len(load(data)) == 2
    assert "cannot be written" in caplog.text and len(reads) == 5


def test_what_is_lost_is_told_from_the_cache_too_and_a_stride_longer_than_a_window_is_refused(data, write, caplog):
    write("RTE/train.tsv", HEADER + "0\ta b c d e f g\tc\tentailment\n1\td\te\tnot_entailment\n")
    for _ in range(2):
        caplog.clear()
        load(data, length=8)
        assert "truncated to 8 tokens: 1 of 2 texts (50.0%)" in caplog.text
    row = replace(ROWS["squad"], stride=17, splits={"train": [Source("SQuAD/train.json", Format.squad)]})
    question = {"id": "1", "question": "c", "answers": [{"text": "a", "answer_start": 0}]}
    write("SQuAD/train.json", json.dumps({"data": [{"paragraphs": [{"context": "a b", "qas": [question]}]}]}))
    with refused("rte: stride"):
        load(data, row=row)
    assert len(load(data, row=row, length=17)) == 1
