"""Figures in README and results: each stands in a JSON that a script wrote, and is what the results come to."""

import json
import re
import sys

import pytest

from tests.helpers.commands import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"
TEXTS = ("README.md", "benchmarks/results/training.md", "benchmarks/results/speed.md")
# Figures have a point or a percent sign; versions of packages have two points.
FIGURE = re.compile(r"(?<![\w.])[-+]?(?:\d+%|\d+\.\d+)(?![\w.]*\d)")
NO_RESULTS = {"5.23"}  # a version


@pytest.fixture(scope="module")
def figures():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import figures

        yield figures
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in ("figures", "measure", "pemt_tables", "readme_tables", "report_glue", "sparse_tables"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def collected(figures):
    return figures.collect()


def results_of(text):
    """What a text says of results: of README, the section."""
    content = (REPOSITORY / text).read_text(encoding="utf-8")
    return re.search(r"^## Results$(.*?)^## ", content, re.M | re.S)[1] if text == "README.md" else content


def test_the_json_is_what_the_script_writes(collected):
    assert json.loads((BENCHMARKS / "results" / "figures.json").read_text(encoding="utf-8")) == collected


def test_tables_in_readme_are_those_that_the_script_writes(figures):
    text = figures.README.read_text(encoding="utf-8")
    assert figures.with_tables(text) == text
    for name in (*figures.sparse_tables(), figures.BORROWING):
        assert figures.in_text(text, name, "other") != text, name


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_says_no_other_figures(collected, text):
    found = set(FIGURE.findall(results_of(text))) - NO_RESULTS
    assert len(found) > 10
    assert found == set(collected[text].values())


def test_runs_that_were_added_to_a_study_later_are_in_its_table(figures, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    row = {"updates": [1], "minutes": [1.0], "perplexity": {"all": [9.0]}, "sparsified_at": None, "scores": {}}
    for name, of_run in (
        ("training_sparse_wmt15", {"system": "dense", "seed": 1}),
        ("training_sparse_wmt15_wider", {"system": "dense_wider", "seed": 1}),
        ("training_sparse_wmt15_untold", {"system": "shared", "seed": 1}),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps([row | of_run]))
    assert [run.system.name for run in figures.sparse_runs("training_sparse_wmt15")] == ["dense", "dense_wider"]
