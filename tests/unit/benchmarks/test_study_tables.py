"""Tables of the studies: what they take from the long table, how they say it, and the figures that pages quote."""

import re
from pathlib import Path

import pytest
import tables

REPOSITORY = Path(__file__).resolve().parents[3]
MADE = {"study": "one", "n": "1", "commit": "abc", "version": "0.1.9", "processor": "P", "date": "2026-01-01"}


def line(row, seed, value, metric="bleu", tier="all", task="", update=100):
    figure = {"seed": str(seed), "value": str(value), "update": str(update)}
    return {**MADE, "row": row, "metric": metric, "tier": tier, "task": task, **figure}


@pytest.fixture
def lines():
    rows = {"dense": (10, 12, 11), "base": (13, 16, 14), "odd": (20,)}
    of_bleu = [line(row, seed, value) for row, values in rows.items() for seed, value in enumerate(values, 1)]
    of_last = [line("dense", 1, 99, update=50), line("dense", 1, 3, task="en-de", tier="high")]
    return tables.Lines([*of_bleu, *of_last])


@pytest.fixture
def study():
    return tables.Described(
        title="One", text="A text.", old="all of it", metric="bleu", groups=["all", "en-de"],
        rows={"dense": "the dense one", "base": "BASE", "odd": "odd"}, beside=["dense"],
    )  # fmt: skip


def test_figures_are_the_last_of_a_run_by_tier_or_task(lines):
    assert lines.values("bleu", "all")["dense"] == {1: 10, 2: 12, 3: 11}
    assert lines.values("bleu", "en-de") == {"dense": {1: 3}}
    assert lines.values("bleu", "high") == {}


def test_a_page_says_where_figures_are_from_and_what_they_come_to(lines, study):
    text = tables.page("one", study, lines)
    assert text.startswith("# One\n\nA text.\n\n**Old**: all of it")
    assert "commit abc (0.1.9); P; 2026-01-01" in text
    assert re.search(r"BASE +\| the dense one +\| \+3\.3 \(\+1\.9 to \+4\.8\): higher, p 0\.010 after Holm", text)
    assert re.search(r"odd +\| the dense one +\| \+10\.0 \(one seed\) +\|", text)
    assert re.search(r"dense one +\| +3 \| +11\.0 ±1\.0 \| +3\.0 \|", text)


def test_perplexities_are_compared_in_percent():
    rows = {"a": (100, 200), "b": (110, 220)}.items()
    of_seeds = [line(row, seed, value, "valid perplexity") for row, of in rows for seed, value in enumerate(of, 1)]
    lines = tables.Lines(of_seeds)
    ((_, found),) = tables.compare(lines, [tables.Compared("b", "a")], "valid perplexity")
    assert tables.shown(found, "valid perplexity") == "+10.0% (+10.0 to +10.0)"
    assert tables.verdict(found, -2) == "disagrees"
    assert tables.verdict(found, 2) == "agrees"


def test_rows_of_the_table_have_titles_and_contrasts_have_rows():
    lines, studies = tables.read_results(tables.RESULTS), tables.studies()
    for name, study in studies.items():
        of_study = tables.lines_of(name, lines).lines
        rows = {one["row"] for one in of_study if ", rate " not in one["row"]}
        assert rows <= study.rows.keys(), name
        assert {row for one in study.contrasts for row in (one.row, one.control)} <= study.rows.keys()
    assert {one["study"] for one in lines} <= studies.keys()


def test_pages_are_those_of_the_table():
    """After a change of the table or of descriptions: `python benchmarks/tables.py write`."""
    lines = tables.read_results(tables.RESULTS)
    for name, study in tables.studies().items():
        of_study = tables.lines_of(name, lines)
        if of_study.lines:
            assert tables.RESULTS.with_name(f"{name}.md").read_text("utf-8") == tables.page(name, study, of_study), name


def test_pages_quote_the_table():
    assert list(tables.misquoted()) == []


def test_intervals_in_pages_are_quoted():
    """No difference with an interval stands in a page without an entry in quoted.yaml."""
    lines, studies = tables.read_results(tables.RESULTS), tables.studies()
    known: dict[str, set[str]] = {}
    for one in tables.load_pages().quoted:
        known.setdefault(one.page, set()).add(tables.text_of(one, lines, studies)[0])
    difference = re.compile(r"[+-][\d.]+%? \((?:[+-][\d.]+ to [+-][\d.]+|one seed)\)")
    for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs" / "papers").glob("*.md")):
        page = path.relative_to(REPOSITORY).as_posix()
        assert set(difference.findall(path.read_text("utf-8"))) <= known.get(page, set()), page


def test_the_picture_is_hollow_for_one_seed(lines, study, tmp_path):
    panel = tables.Panel("t", "one", "dense", "bleu", ["all"], ["base", "odd"])
    base, odd = tables.points_of(panel, lines.lines, study.rows)
    assert base["low"] < base["mean"] < base["high"] and "low" not in odd
    tables.draw([panel], lines.lines, {"one": study}, tmp_path / "options.svg")
    svg = (tmp_path / "options.svg").read_text()
    filled, drawn = (len(re.findall(rf'aria-roledescription="point"[^>]*{fill}', svg)) for fill in ('fill="#', ""))
    assert (filled, drawn) == (1, 3)  # the hollow ones are of all rows, the full one of several seeds


def test_a_registered_study_shows_what_dense_reaches_and_its_learning_rates(study):
    import tables

    reached = {"model": 8, "shuffled": 12, "trigrams": 40}
    of_entry = [line("dense", 1, value, f"perplexity, {kind}") for kind, value in reached.items()]
    rates = [line("dense, rate 3e-3", 0, 9.5, "valid perplexity")]
    study.entry = tables.Entry()
    text = tables.page("one", study, tables.Lines([line("dense", 1, 16), *of_entry, *rates]))
    assert re.search(r"BLEU, mean over all pairs +\| at least 15 +\| +16\.0 \| yes", text)
    assert re.search(r"shuffled sources / with its own +\| at least 2 +\| +1\.50 \| no", text)
    assert re.search(r"source-free trigrams +\| at most 0\.5 +\| +0\.20 \| yes", text)
    assert re.search(r"dense +\| +3e-3 +\| +9\.50 \|", text)
