"""The benchmark of conditional parts: systems that are equal until they train, each part alone, and frozen halves."""

import json
import sys

import pytest

from fairseq_mtmoe.backbones.bert.config import EncoderConfig

TINY = EncoderConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)


@pytest.fixture
def bench(monkeypatch):
    import bench_conditional
    import glue_texts

    monkeypatch.setattr(glue_texts, "MOST_WORDS", 40_000)
    yield bench_conditional
    for name in ("bench_conditional", "bench_glue", "glue_systems", "glue_texts"):
        sys.modules.pop(name)


def test_everything_is_measured_and_systems_are_compared_first(bench, tmp_path, monkeypatch):
    import measure

    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    size = bench.Size(share=0.0006, encoder=TINY, arch="", batch=8, tasks=2, longest=4, length=20)
    report = measure.Report("conditional_tiny", "tiny")
    check, seen = bench.check_equal, []
    monkeypatch.setattr(bench, "check_equal", lambda found, sample: seen.append(found) or check(found, sample))
    bench.run(size, 5, tmp_path, report)
    report.finish(write=True, check=False)
    written = json.loads((tmp_path / "conditional_tiny.json").read_text())
    assert len(written["floors"]) == 4 and all(figure["value"] > 0 for figure in written["floors"])
    assert [len(seconds) for kind in written["raw"].values() for seconds in kind.values()] == [5] * 2 * 8
    (found,) = seen
    assert [*found] == [*bench.SYSTEMS] and len(bench.SYSTEMS) == 8
    for name in (bench.FROZEN, bench.ADAPTED_FROZEN):
        frozen = [one for one in found[name].model.encoder.parameters() if not one.requires_grad]
        assert len(frozen) == 5 + 16 and all(one.grad is None for one in frozen)
