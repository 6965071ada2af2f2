"""The benchmark of multi-task understanding: data as long as GLUE's, and systems that are equal until they train."""

import json
import sys

import numpy as np
import pytest

from fairseq_mtmoe.backbones.bert.config import EncoderConfig

TINY = EncoderConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)


@pytest.fixture
def bench(monkeypatch):
    import bench_glue
    import glue_texts

    monkeypatch.setattr(glue_texts, "MOST_WORDS", 40_000)
    yield bench_glue
    for name in ("bench_glue", "glue_systems", "glue_texts"):
        sys.modules.pop(name)


def test_the_tables_of_lengths_and_forms_are_of_glues_tasks(bench):
    from glue_texts import FORMS, lengths

    from fairseq_mtmoe.data.nlu.table import chosen_rows, load_tables

    rows = chosen_rows(load_tables(), ["all"])
    assert set(rows) == set(FORMS) == set(lengths())
    for task, about in lengths().items():
        (source, *_) = rows[task].splits["train"]
        assert (about["count"], FORMS[task].file) == (source.count, source.file)
        assert about["tokens"] == sorted(about["tokens"]) and (about["first"] < 1) == (len(rows[task].texts) == 2)


def test_texts_have_the_tokens_that_are_asked_for(bench):
    from glue_texts import Words, serialized_tokenizer
    from tokenizers import Tokenizer

    wanted = np.array([5, 0, 12, 30, 1, 8] * 50)
    texts = Words().texts(wanted, np.random.default_rng(1))
    encodings = Tokenizer.from_str(serialized_tokenizer()).encode_batch(texts, add_special_tokens=False)
    found = np.array([len(encoding.ids) for encoding in encodings])
    assert texts[1] == "" and abs(found - wanted).max() <= 3 and abs(found.sum() - wanted.sum()) <= 3
    assert 0 < np.mean(["##" in token for encoding in encodings for token in encoding.tokens]) < 0.2


def test_everything_is_measured_and_systems_are_compared_first(bench, tmp_path, monkeypatch):
    import measure

    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    size = bench.Size(share=0.0006, encoder=TINY, arch="", batch=8, tasks=2, longest=4, length=20)
    report = measure.Report("glue_tiny", "tiny")
    check, seen = bench.check_equal, []

    def checked(found, sample):
        check(found, sample)
        seen.append((found, sample))

    monkeypatch.setattr(bench, "check_equal", checked)
    bench.run(size, 5, tmp_path, report)
    report.finish(write=True, check=False)
    written = json.loads((tmp_path / "glue_tiny.json").read_text())
    assert len(written["floors"]) == 8 and all(figure["value"] > 0 for figure in written["floors"][4:])
    assert [len(seconds) for kind in written["raw"].values() for seconds in kind.values()] == [5] * 6
    ((found, sample),) = seen
    assert [*found] == [bench.PEER, bench.DENSE, bench.SPARSE]
    with pytest.raises(AssertionError):  # they were trained, with dropouts of their own
        check(found, sample)
