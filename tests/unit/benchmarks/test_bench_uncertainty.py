"""The benchmark of uncertainty sampling."""

import sys

import pytest

from fairseq_mtmoe.backbones.bert.config import EncoderConfig

TINY = EncoderConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)


@pytest.fixture
def bench(monkeypatch):
    import bench_uncertainty
    import glue_texts

    monkeypatch.setattr(glue_texts, "MOST_WORDS", 40_000)
    yield bench_uncertainty
    for name in ("bench_uncertainty", "bench_glue", "glue_systems", "glue_texts"):
        sys.modules.pop(name, None)


def test_choosing_is_timed_beside_training_on_as_many_sentences(bench, tmp_path, monkeypatch):
    import measure

    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "SYSTEMS", ("mt_dense",))
    report = measure.Report("uncertainty_tiny", "tiny")
    trained, step = [], bench.System.__call__
    monkeypatch.setattr(bench.System, "__call__", lambda self: trained.append(self.sample) or step(self))
    bench.run(bench.Size(0.0006, encoder=TINY, arch=""), 2, 5, tmp_path, report)
    (figure,) = report.figures
    assert figure.floor.limit == 0.40 and figure.value > 0
    whole = [sample for sample in trained if bench.CANDIDATES not in sample]
    assert len(whole) == 2 * 7 and {sample["nsentences"] for sample in whole} <= {14, 15, 16}
