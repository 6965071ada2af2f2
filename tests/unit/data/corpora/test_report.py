import json
from copy import deepcopy

from fairseq_mtmoe.data.corpora.report import hints, text_table, write
from tests.helpers.tables import unpadded


def example():
    """A report of two language pairs."""
    pairs = {}
    for name, tier, size, unknown, dropped in (
        ("en-bb", "low", 10, 3, {"empty": 2, "copy": 3}),
        ("en-aa", "high", 1200, 1, {"copy": 1000}),
    ):
        sides = {"en": {"tokens": 60, "unknown": 0}, "xx": {"tokens": 40, "unknown": unknown}}
        pairs[name] = {
            **{"tier": tier, "train": size, "valid": 1, "test": 1, "shards": 1, "dropped": dropped},
            "tokens": {split: deepcopy(sides) for split in ("train", "valid", "test")},
            **{"evaluation_sources_in_training": 1, "found_in_training_of": {"en-aa": 1}},
        }
    return {"command": "catalogs", "options": {"vocab_size": 8000, "character_coverage": 0.9995}, "pairs": pairs}


def test_tables_largest_first_with_a_total():
    head, rows = text_table(example())
    assert head == ["pair", "tier", "train", "valid", "test", "dropped", "unknown"]
    assert rows == [
        ["en-aa", "high", "1,200", "1", "1", "1,000", "1.00%"],
        ["en-bb", "low", "10", "1", "1", "5", "3.00%"],
        ["total", "", "1,210", "2", "2", "1,005", "2.00%"],
    ]
    head, rows = text_table(example(), by_reason=True)
    assert head == ["pair", "tier", "train", "valid", "test", "−empty", "−copy", "unknown"]
    assert rows[1][5:7] == ["2", "3"]


def test_files(tmp_path):
    report = {
        **example(),
        "left_out": {"zz": 3},
        "sources": [{"source": "django 5", "catalogs": 7, "damaged": ["x.mo"]}],
        "files": {
            "test.en-aa.aa": {"removed": 3, "breaks": 0, "respelled": 1200},
            "test.en-aa.en": {"removed": 0, "breaks": 0, "respelled": 0},
        },
    }
    write(tmp_path, report)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    page = unpadded((tmp_path / "report.md").read_text())
    for line in (
        "- vocab size: 8000",
        "- validation and test sources that also occur in some language's training data: 2",
        "| en-bb | low | 10 | 1 | 1 | 2 | 3 | 3.00% |",
        "`−copy` (dropped): the translation equals the message.",
        "| django 5 | 7 | x.mo |",
        "Languages left out, with their number of messages: zz (3).",
        "| en-aa | 1 | en-aa (1) |",
        "| test.en-aa.aa | 3 | 0 | 1,200 |",
        *hints(report),
    ):
        assert line in page.splitlines()
    assert "−length" not in page and "| test.en-aa.en |" not in page
    write(tmp_path, {**example(), "files": {"test.en-aa.aa": {"removed": 0}}})
    assert "No text file had control or invisible characters" in (tmp_path / "report.md").read_text()


def test_hints_are_given_where_there_is_cause():
    report = example()
    seen, unknown = hints(report)
    assert seen == "2 validation and test sources also occur in training data."
    assert "(xx 5.0%)" in unknown and "raise `--character-coverage` above 0.9995" in unknown
    for pair in report["pairs"].values():
        pair["evaluation_sources_in_training"] = 0
        pair["tokens"]["test"]["xx"]["tokens"] = 401  # of 802, 4 are unknown: under 0.5%
    assert hints(report) == []
    report["pairs"]["en-aa"]["tokens"]["test"]["xx"]["unknown"] = 2
    assert "(xx 0.6%)" in hints(report)[0]
    report["options"]["character_coverage"] = 1.0  # there is nothing above
    assert hints(report) == []
