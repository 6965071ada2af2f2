"""The benchmark of multi-task encoders: systems that are equal until they train."""

import importlib
import json

import pytest
from measure import Report

from fairseq_mtmoe.nlu.bert.config import EncoderConfig

TINY = EncoderConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)


@pytest.fixture(autouse=True)
def _few_words(monkeypatch, tmp_path):
    monkeypatch.setattr("glue_texts.MOST_WORDS", 40_000)
    monkeypatch.setattr("measure.RESULTS", tmp_path)


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
