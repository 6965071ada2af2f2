"""The report of what was found in real text: from a preparation by the command, without a line of that text."""

import json

import pytest
from click.testing import CliRunner

from tests.helpers import raw_corpora

SCRIPT = "report_corpora"


def test_stages_are_read_at_their_ends(bench):
    log = """2026-11-23 04:57:44 Hashing
2026-11-23 04:57:44 Hashing: 9 of 60 MB, 14 MB/s, 0:00:04 left
2026-11-23 04:57:44 Hashing: 60 of 60 MB, 80 MB/s
2026-11-23 04:57:46 Reading and cleaning
2026-11-23 04:57:49 Reading and cleaning: 292,500 pairs, 97,500 pairs/s
2026-11-23 04:57:50 Making the vocabulary
2026-11-23 04:58:05 Making the vocabulary: 15 s
2026-11-23 04:59:18 Making the vocabulary: 88 s
2026-11-23 04:59:18 Vocabulary: 32,000 pieces, as the recipe does not say how many
"""
    first, second, third = bench.stages(log)
    assert first == bench.Stage("Hashing", 0.75, 60, "MB", 80)
    assert second == bench.Stage("Reading and cleaning", 3.0, 292_500, "pairs", 97_500)
    assert third == bench.Stage("Making the vocabulary", 88.0)


@pytest.mark.slow
def test_a_report_has_the_figures_and_none_of_the_text(bench, tmp_path, monkeypatch):
    raw, data, results = (tmp_path / name for name in ("raw", "data", "results"))
    results.mkdir()
    monkeypatch.setattr("measure.RESULTS", results)
    arguments = [*map(str, (raw, data, "mine", "--recipe", raw_corpora.write_raw(raw), "--workers", 1))]
    result = CliRunner().invoke(bench.main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    content = json.loads((results / "corpora_mine.json").read_text(encoding="utf-8"))
    text, cost = content["raw"]["text"], content["raw"]["cost"]
    made = json.loads((data / "report.json").read_text(encoding="utf-8"))
    assert set(text["training"]) == set(text["pairs"]) == {"en-de", "en-et"}
    whole = text["all"]
    assert whole["lines"] == sum(one["read"] for one in made["corpora"].values() if one["role"] == "train")
    used = whole["kept"] + whole["drawn"]
    assert whole["lines"] == used + sum(whole["dropped"].values()) + sum(whole["bad"].values())
    assert whole["drawn"] == 20 and whole["dropped"]["held_out"] >= 3 and whole["dropped"]["duplicate"] >= 3
    assert [text["pairs"]["en-de"][split] for split in ("valid", "test", "shards")] == [10, 8, 3]
    labels = [stage["label"] for stage in cost["stages"]]
    assert labels.index("Reading and cleaning") < labels.index("Encoding") < labels.index("Writing shards")
    assert sum(stage["seconds"] for stage in cost["stages"]) < cost["seconds"] and cost["peak_mb"] > 50
    assert cost["bytes"]["RAW"] == sum(path.stat().st_size for path in raw.iterdir())
    page = (results / "corpora_mine.md").read_text(encoding="utf-8")
    assert "| all " in page and "near_duplicate" in page and "max_ratio: 3.0" in page
    written = page + (results / "corpora_mine.json").read_text(encoding="utf-8")
    lines = [line for path in raw.glob("train*") for line in path.read_text(encoding="utf-8").splitlines()]
    assert lines and not [line for line in lines if line in written]
    again = CliRunner().invoke(bench.main, arguments)
    assert again.exit_code == 2 and "must not be there yet" in again.output
