"""The report of a study: means, deviations, paired differences with standard errors, and what is not finished."""

import json
import sys
from statistics import fmean, pstdev, stdev

import pytest
from click.testing import CliRunner

from tests.helpers.tables import unpadded


@pytest.fixture
def reporting():
    import report_glue

    yield report_glue
    sys.modules.pop("report_glue")


def scores_of(**scores):
    return {
        task: {
            "title": task.upper(), "metric": "accuracy", "small": task == "rte",
            "sets": {task: {"examples": 100, "score": score, "standard_error": 3.0, "data_sha256": "d"}},
        }
        for task, score in scores.items()
    }  # fmt: skip


def record(system, seed, scores, stage=1, share=1.0, **more):
    return {
        "system": system, "tasks": list(scores), "seed": seed, "stage": stage, "share": share, "updates": 10,
        "commit": "abc", "hardware": "a machine", "versions": {"torch": "2"}, "command": ["fairseq-train", system],
        "seconds": 60, "scores": scores_of(**scores), **more,
    }  # fmt: skip


MTL = {1: (60.0, 40.0), 2: (62.0, 44.0), 3: (61.0, 39.0)}
WHOLE = {1: (63.0, 44.0), 2: (66.0, 47.0), 3: (61.0, 44.0)}


@pytest.fixture
def content():
    runs = {}
    for system, values, data in (("mtl", MTL, 0.8), ("ca_mtl", WHOLE, 0.66)):
        for seed, (rte, cola) in values.items():
            more = {"share_of_data": data, "task_shares": {"rte": 0.4, "cola": 0.6}}
            runs[f"{system}-{seed}"] = record(system, seed, {"rte": rte, "cola": cola}, **more)
    for seed in (1, 2):  # the second one lacks a task
        for task, score in (("rte", 58.0), ("cola", 41.0))[: 3 - seed]:
            runs[f"single-{task}-{seed}"] = record(
                "single", seed, {task: score}, share_of_data=1, task_shares={task: 1}
            )
    for system, score in (("from_rte", 70.0), ("from_encoder", 60.0)):
        for share in (0.01, 0.1):
            for seed in (1, 2):
                runs[f"{system}-{share}-{seed}"] = record(system, seed, {"sick": score + 20 * share + seed}, 2, share)
    return {"settings": {"lr": 0.1, "paper": {"mtl": {"all": 80.61, "spread": 14.41}}}, "runs": runs}


def rows_of(text, start):
    """The cells of the table whose first row begins with `start`, by their first one."""
    lines = unpadded(text).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {start} |"))
    table = list(dict.fromkeys(lines[first:]))[: next((n for n, x in enumerate(lines[first:]) if not x), None)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table if line.startswith("|")]
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[1:]}


def error_of(values):
    return stdev(values) / len(values) ** 0.5


def test_means_errors_and_spread_over_tasks(reporting, content):
    rows = rows_of(reporting.report(content, "A study"), "system")
    row = rows["mtl"]
    all_of = [fmean(pair) for pair in MTL.values()]
    spreads = [pstdev(pair) for pair in MTL.values()]
    assert row["RTE"] == f"61.00 ±{error_of([60, 62, 61]):.2f}" and row["seeds"] == "1, 2, 3"
    assert row["All"] == f"{fmean(all_of):.2f} ±{error_of(all_of):.2f}"
    assert row["spread"] == f"{fmean(spreads):.2f} ±{error_of(spreads):.2f}"
    assert (row["% of the data"], row["minutes"]) == ("80.0", "1.0")
    assert (row["paper: mean"], row["paper: spread"], rows["ca_mtl"]["paper: mean"]) == ("80.61", "14.41", "")
    assert rows["*standard error of one run*"]["RTE"] == "3.00"
    assert rows["*standard error of one run*"]["All"] == f"{3 / 2**0.5:.2f}"


def test_tasks_of_two_benchmarks_have_an_average_for_each(reporting, content):
    for run in content["runs"].values():
        for task, found in run["scores"].items():
            found["group"] = "GLUE" if task == "rte" else "SuperGLUE"
    row = rows_of(reporting.report(content, "A study"), "system")["mtl"]
    assert (row["GLUE"], row["SuperGLUE"]) == (row["RTE"], row["COLA"])


def test_differences_are_paired_with_their_standard_error(reporting, content):
    row = rows_of(reporting.report(content, "A study"), "difference")["ca_mtl − mtl"]
    cola = [other[1] - one[1] for one, other in zip(MTL.values(), WHOLE.values(), strict=True)]
    assert row["COLA"] == f"+{fmean(cola):.2f} ±{stdev(cola) / 3**0.5:.2f} *"  # 4.0 is more than 4.3 times 0.58
    rte = [other[0] - one[0] for one, other in zip(MTL.values(), WHOLE.values(), strict=True)]
    assert row["RTE"] == f"+{fmean(rte):.2f} ±{stdev(rte) / 3**0.5:.2f}"  # 2.3 is not of 1.2
    assert row["All, to the row above"] == row["All"]


def test_single_tasks_complete_each_other_and_what_lacks_one_is_said(reporting, content):
    text = reporting.report(content, "A study")
    assert rows_of(text, "system")["single"]["seeds"] == "1"
    assert rows_of(text, "system")["single"]["minutes"] == "2.0"
    assert "Not finished, and not in the tables: single-2." in text


def test_new_tasks_have_a_column_for_each_share_beside_the_last_system(reporting, content):
    text = reporting.report(content, "A study").partition("## New tasks")[2]
    assert rows_of(text, "system")["from_rte"]["SICK, 1%"] == f"71.70 ±{error_of([1, 2]):.2f}"
    row = rows_of(text, "difference")["from_rte − from_encoder"]
    assert row["SICK, 10%"] == "+10.00 ±0.00 *" and "All" not in row
    assert "% of the data" not in text


def test_a_report_is_written_beside_the_runs(reporting, content, tmp_path):
    file = tmp_path / "training_x.json"
    file.write_text(json.dumps({**content, "runs": {"mtl-1": content["runs"]["mtl-1"]}}))
    CliRunner().invoke(reporting.main, [str(file), "--title", "One run"], catch_exceptions=False)
    text = (tmp_path / "training_x.md").read_text()
    assert text.startswith("# One run") and "fairseq-train mtl" in text and "difference" not in text
