"""Benchmarks on texts like GLUE's: data as long, and systems that are equal until they train."""

import importlib
import json

import numpy as np
import pytest
from glue_texts import Words, lengths, serialized_tokenizer
from measure import Report
from tokenizers import Tokenizer

from fairseq_mtmoe.backbones.bert.config import EncoderConfig
from fairseq_mtmoe.data.nlu.table import chosen_rows, load_tables

TINY = EncoderConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)


@pytest.fixture(autouse=True)
def _few_words(monkeypatch, tmp_path):
    monkeypatch.setattr("glue_texts.MOST_WORDS", 40_000)
    monkeypatch.setattr("measure.RESULTS", tmp_path)


def test_there_are_lengths_of_all_of_glues_training_examples():
    rows = chosen_rows(load_tables(), ["all"])
    assert {task: row.splits["train"][0].count for task, row in rows.items()} == {
        task: about["count"] for task, about in lengths().items()
    }


def test_texts_have_the_tokens_that_are_asked_for():
    wanted = np.array([5, 0, 12, 30, 1, 8] * 50)
    texts = Words().texts(wanted, np.random.default_rng(1))
    encodings = Tokenizer.from_str(serialized_tokenizer()).encode_batch(texts, add_special_tokens=False)
    found = np.array([len(encoding.ids) for encoding in encodings])
    assert texts[1] == "" and abs(found - wanted).max() <= 3 and abs(found.sum() - wanted.sum()) <= 3
    assert 0 < np.mean(["##" in token for encoding in encodings for token in encoding.tokens]) < 0.2


def test_everything_is_measured_and_systems_are_compared_first(tmp_path, monkeypatch):
    bench, compared = importlib.import_module("bench_glue"), []
    check = bench.check_equal

    def check_and_keep(systems, sample):
        check(systems, sample)
        compared.append((systems, sample))

    monkeypatch.setattr(bench, "check_equal", check_and_keep)
    size = bench.Size(0.0006, encoder=TINY, arch="", batch=8, tasks=2, longest=4, length=20, candidates=2)
    report = Report("tiny", "tiny")
    bench.compare(report, size, 2, tmp_path)
    report.finish(write=True, check=False)
    written = json.loads((tmp_path / "tiny.json").read_text())
    assert len(written["floors"]) == 2 * len(bench.RATIOS) + len(bench.CHOOSING)
    assert all(figure["value"] > 0 for figure in written["floors"][-4:])
    ((systems, sample),) = compared
    timed = [len(times) for kind in written["raw"].values() for times in kind.values()]
    assert timed == [2] * 2 * (len(systems) + len(bench.CHOOSING))
    with pytest.raises(AssertionError):  # They were trained, with dropouts of their own.
        check(systems, sample)
    for name in (bench.FROZEN, bench.ADAPTED_FROZEN):
        parameters = list(systems[name].model.encoder.parameters())
        frozen = [parameter for parameter in parameters if not parameter.requires_grad]
        assert len(frozen) == 5 + 16
        assert all(parameter.grad is None for parameter in frozen)
