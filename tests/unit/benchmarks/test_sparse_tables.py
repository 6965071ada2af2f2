"""README's tables of sparse models beside dense ones: means, differences by seed, and every figure in them."""

import math
import sys
from statistics import fmean, stdev

import pytest

from tests.helpers.tables import unpadded

MODULES = (
    "equal_cost", "price_evaluation", "price_memory", "price_runs", "readme_tables", "report_glue", "routing_tables",
    "sparse_systems", "sparse_tables", "training_report", "training_systems",
)  # fmt: skip
ENDS = {"dense": (50.0, 60.0, 56.0), "base": (45.0, 57.0, 49.0)}  # by seed, at update 200


@pytest.fixture
def tables():
    import sparse_tables

    yield sparse_tables
    for name in MODULES:
        sys.modules.pop(name, None)


def row(system, seed, end, **of_run):
    """A run as `compare_sparse.py` writes it down; sparse ones take a quarter more minutes."""
    minutes = [10.0, 20.0] if system == "dense" else [12.5, 25.0]
    return {
        "system": system, "seed": seed, "updates": [100, 200], "minutes": minutes,
        "perplexity": {"all": [100.0, end], "low": [1.0, 1.0], "high": [1.0, 1.0]}, "sparsified_at": None,
        "scores": {}, **of_run,
    }  # fmt: skip


@pytest.fixture
def results(tables):
    rows = [row(name, seed, end) for name, ends in ENDS.items() for seed, end in enumerate(ends, 1)]
    return tables.results_of([*rows, row("of another time", 1, 1.0)])


def rows_of(table):
    lines = [line for line in unpadded(table.markdown()).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("| ---")]
    return {found[0]: dict(zip(cells[0], found, strict=True)) for found in cells[1:]}


def test_beside_dense_at_equal_updates_and_minutes(tables, results):
    """At 20 minutes a sparse run is three fifths of the way from update 100 to 200, in the logarithm."""
    found = rows_of(tables.beside_dense("study", results))["BASE, 16 experts"]
    above = [100 * (base / dense - 1) for dense, base in zip(*ENDS.values(), strict=True)]
    assert found["at equal updates, % above dense"].startswith(f"{fmean(above):+.2f} ±{stdev(above) / 3**0.5:.2f}")
    there = [100 * (end / 100) ** 0.6 for end in ENDS["base"]]
    assert found["perplexity at equal minutes"] == f"{fmean(there):.1f}"
    late = [100 * (base / dense - 1) for dense, base in zip(ENDS["dense"], there, strict=True)]
    assert found["at equal minutes, % above dense"].startswith(f"{fmean(late):+.2f} ")
    assert (found["seeds"], found["step"]) == ("3", "1.25")
    assert rows_of(tables.beside_dense("study", results))["dense"]["at equal minutes, % above dense"] == ""


def test_a_star_where_chance_would_hardly_do_that(tables):
    alike = [row(name, seed, end + seed / 100) for name, end in (("dense", 60.0), ("base", 50.0)) for seed in (1, 2, 3)]
    apart = [row(name, seed, end) for name, ends in ENDS.items() for seed, end in enumerate(ends, 1)]
    for rows, starred in ((alike, True), (apart[:2] + apart[3:5], False)):
        found = rows_of(tables.beside_dense("study", tables.results_of(rows)))["BASE, 16 experts"]
        assert found["at equal updates, % above dense"].endswith(" *") == starred


def test_beside_base_with_what_greedy_routing_gives(tables):
    routed = {"perplexity_by_routing": {"prices": 44.0, "greedy": 47.5, "balanced within the batch": 50.0}}
    rows = [row("dense", 1, 50.0), row("base", 1, 44.0, **routed), row("shared", 1, 55.0, **routed)]
    found = rows_of(tables.beside_base("study", tables.results_of(rows)))
    assert found["half of each expert shared"]["% above BASE"] == "+25.00"
    assert found["half of each expert shared"]["routed greedily"] == "47.5"
    assert found["dense"]["routed greedily"] == "" and found["BASE, 16 experts"]["% above BASE"] == ""


def test_of_the_paper_with_the_low_tier_and_the_way_to_bases_best(tables):
    """Heated runs come down from 100 to BASE's 60 on a line in the logarithm, and so before update 200; colder ones
    do not in each seed."""
    low = {"base": 80.0, "base_heated": 60.0, "base_cold": 100.0}
    ends = {"base": (60.0, 60.0), "base_heated": (50.0, 54.0), "base_cold": (55.0, 66.0)}
    rows = [row(name, seed, end) for name, of_seeds in ends.items() for seed, end in enumerate(of_seeds, 1)]
    for one in rows:
        one["perplexity"]["low"] = [100.0, low[one["system"]]]
        one["perplexity"]["high"] = [100.0, 160.0 - low[one["system"]]]
    found = rows_of(tables.of_the_paper("study", tables.results_of(rows)))
    assert found["BASE + heating"]["low tier, % above BASE"].startswith("-25.00 ±0.00")
    assert found["BASE, T = 1"]["low tier, % above BASE"].startswith("+25.00 ")
    assert found["BASE + heating"]["high tier, % above BASE"].startswith("+25.00 ")
    reached = fmean(100 + 100 * math.log(0.6) / math.log(end / 100) for end in ends["base_heated"])
    assert found["BASE + heating"]["updates to BASE's best"] == f"{reached:.0f}"
    assert found["BASE, T = 1"]["updates to BASE's best"] == ""
    assert found["BASE, 16 experts"]["updates to BASE's best"] == "200"


def test_bleu_of_scored_runs_is_compared_seed_by_seed(tables):
    """Of the third seed BASE has no scores, so that it is left out."""
    bleu = {
        ("base", 1): (10.0, 4.0), ("base_heated", 1): (11.0, 3.0), ("base_heated", 3): (99.0, 99.0),
        ("base", 2): (11.0, 4.0), ("base_heated", 2): (13.0, 5.0), ("base", 3): None,
    }  # fmt: skip
    rows = [
        row(
            name,
            seed,
            50.0,
            scores={"averages": {"all": {"bleu": of[0]}, "low": {"bleu": of[1]}, "high": {"bleu": 30 - of[1]}}}
            if of
            else {},
        )
        for (name, seed), of in bleu.items()
    ]
    found = rows_of(tables.of_the_paper("study", tables.results_of(rows)))
    heated = found["BASE + heating"]
    assert (heated["BLEU"], heated["BLEU above BASE"]) == ("12.0", "+1.50 ±0.50")
    assert (heated["seeds"], heated["low tier, BLEU above BASE"]) == ("3", "+0.00 ±1.00")
    assert heated["high tier, BLEU above BASE"] == "+0.00 ±1.00"
    assert found["BASE, 16 experts"]["BLEU"] == "10.5" and found["BASE, 16 experts"]["BLEU above BASE"] == ""


def test_every_number_of_a_table_is_a_figure(tables, results):
    table = tables.beside_dense("study", results)
    shown = {part for cells in rows_of(table).values() for key, cell in cells.items() if key not in ("", "seeds")
             for part in cell.replace("*", "").replace("±", "").split()}  # fmt: skip
    assert shown == set(dict(table.figures()).values())
