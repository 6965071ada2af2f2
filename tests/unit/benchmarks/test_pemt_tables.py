"""README's tables of PEMT's study: of all runs, and of those that happen to be there."""

import sys
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, stdev

import pytest

from tests.helpers.tables import unpadded

MODULES = (
    "compare_pemt",
    "compare_training",
    "glue_runs",
    "pemt_tables",
    "readme_tables",
    "report_glue",
    "training_report",
    "training_systems",
)
TARGETS = ("stsb", "mrpc", "rte", "cb")


@pytest.fixture
def tables():
    import pemt_tables

    yield pemt_tables
    for name in MODULES:
        sys.modules.pop(name, None)


def score_of(run):
    """LoRA has 60 + the seed; rows lie above it alike in all tasks, by a little more or less with each seed."""
    above = {"lora": 0, "full": -3, "pemt": 5, "no_description": 0.1}.get(run.system, 2)
    return 60 + run.seed + above + TARGETS.index(run.tasks[0]) + 0.5 * (run.seed % 2) * (run.system != "lora")


def record_of(run, score):
    sets = {run.tasks[0]: {"examples": 10, "score": score, "standard_error": 1.0, "data_sha256": "", "also": {}}}
    task = {"title": run.tasks[0].upper(), "metric": "accuracy", "small": True, "group": "", "sets": sets}
    weights = {"weights": {"snli": 0.5 - 0.1 * run.seed, "qqp": 0.3}} if run.system == "pemt" and run.stage == 1 else {}
    return {**asdict(run), "scores": {run.tasks[0]: task}, **weights}


@pytest.fixture
def content():
    import compare_pemt as study

    plan = study.PemtPlan(Path("/glue"), Path("/t5.pt"), Path("/runs"), 200, 60, 2e-3, ())
    runs = [run for seed in (1, 2, 3) for stage in (study.targets, study.few_examples) for run in stage(plan, seed)]
    paper = {row: {"all": mean} for row, mean in study.PAPER.items()}
    settings = {"targets": TARGETS, "sections": study.SECTIONS, "paper": paper}
    return {"settings": settings, "runs": {run.name: record_of(run, score_of(run)) for run in runs}}


def rows_of(table):
    lines = [line for line in unpadded(table.markdown()).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if not line.startswith("| ---")]
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[1:]}


def test_every_row_of_the_study_has_a_title(tables):
    import compare_pemt as study

    assert set(tables.ROWS) == set(study.WAYS)
    assert set(tables.LANGUAGE_ROWS) == {system.name for system in study.low_resource(Path("runs"))}


def test_the_whole_study(tables, content):
    whole, few = tables.tables_of_tasks(content)
    rows = rows_of(whole)
    assert list(rows) == list(tables.ROWS.values())
    pemt = rows["PEMT, 4 sources"]
    means = [fmean(60 + seed + 5 + index + 0.5 * (seed % 2) for index in range(4)) for seed in (1, 2, 3)]
    assert (pemt["seeds"], pemt["all"]) == ("3", f"{fmean(means):.1f} ±{stdev(means) / 3**0.5:.1f}")
    above = [5.5, 5.0, 5.5]
    assert pemt["all, above LoRA"] == f"+{fmean(above):.2f} ±{stdev(above) / 3**0.5:.2f} *"
    assert pemt["in the paper"] == "+3.10" and rows["LoRA"]["in the paper"] == ""
    assert rows["full fine-tuning"]["in the paper"] == "-0.90"
    assert list(rows_of(few))[3:6] == [
        "LoRA, 16 examples",
        "full fine-tuning, 16 examples",
        "PEMT, 4 sources, 16 examples",
    ]
    assert list(rows_of(few)["LoRA, 4 examples"]) == ["few examples", "seeds", "all", "all, above LoRA"]


def test_what_it_says_of_lora_follows_from_the_differences(tables, content):
    whole, _ = tables.tables_of_tasks(content)
    judged = whole.judgement()
    assert "Higher than LoRA: PEMT, 4 sources; PEMT, 2 sources" in judged
    assert "Lower: full fine-tuning." in judged
    assert "No difference shown: PEMT, prompts that begin at random." in judged
    assert "more than 30% in the mean" in judged and "One seed" not in judged


def test_figures_are_those_of_the_text_and_no_others(tables, content):
    from tests.unit.benchmarks.test_figures import FIGURE

    found = tables.tables_of_tasks(content)
    figures = dict(figure for table in found for figure in table.figures())
    assert set(FIGURE.findall(tables.block_of(found))) == set(figures.values()) and len(figures) > 100
    assert figures["PEMT on MiniLM, PEMT, 4 sources, all, above LoRA: standard error"] == "0.17"


@pytest.mark.parametrize("kept", [1, 5, 12, 41, 60, 100, 150])
def test_a_part_of_the_study(tables, content, kept):
    """Whatever was found so far is shown where it is of all targets, and no figure is one that is not known."""
    content["runs"] = dict(list(content["runs"].items())[:kept])
    found = tables.tables_of_tasks(content)
    assert "nan" not in tables.block_of(found)
    assert [row.title for table in found for row in table.rows][:1] == (
        ["LoRA"] if kept > 7 else ["PEMT, 4 sources"][: kept // 4]
    )


def test_rows_without_lora_have_no_difference(tables, content):
    content["runs"] = {name: run for name, run in content["runs"].items() if run["system"] == "pemt"}
    (table, _) = tables.tables_of_tasks(content)
    assert list(rows_of(table)["PEMT, 4 sources"]) == [
        "all examples",
        "seeds",
        *map(str.upper, TARGETS),
        "all",
        "in the paper",
    ]


def test_languages(tables):
    def run(system, seed, perplexity, bleu):
        scores = {"averages": {"all": {"bleu": bleu, "chrf": 1.0}}} if bleu else {}
        return {"system": system, "seed": seed, "perplexity": {"all": [99.0, perplexity, 50.0]}, "scores": scores}

    runs = [run("lora", 1, 20.0, 10.0), run("lora", 2, 22.0, 10.5), run("relatives", 1, 18.0, 12.0)]
    table = tables.table_of_languages([*runs, run("relatives", 2, 19.8, 12.7), run("full", 1, 30.0, None)])
    rows = rows_of(table)
    assert list(rows) == ["LoRA", "PEMT from Spanish and Portuguese"]
    assert rows["LoRA"]["perplexity"] == "21.0 ±1.0"
    assert rows["PEMT from Spanish and Portuguese"]["perplexity, above LoRA"] == "-2.10 ±0.10 *"
    assert rows["PEMT from Spanish and Portuguese"]["BLEU"] == "12.3 ±0.3"
    assert "Lower: PEMT from Spanish and Portuguese." in table.judgement()
    assert "Galician (1,200 pairs)" in unpadded(tables.block_of([table]))


def test_a_block_takes_the_place_of_another():
    from readme_tables import in_text

    text = "<!-- a begin -->\nold\n<!-- a end -->\n<!-- b begin -->\nold\n<!-- b end -->\n"
    assert in_text(text, "a", "new \\1") == text.replace("old", "new \\1", 1)
    assert in_text(in_text(text, "b", ""), "b", "new") == in_text(text, "b", "new") != text
    assert in_text(text, "c", "new") == text
