"""A benchmark's scores: each task once in an average, and the files say what the table says."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fairseq_mtmoe.analysis.published import published_row, published_rows
from fairseq_mtmoe.analysis.task_scores import (
    SetScore,
    TaskScore,
    averages,
    from_content,
    groups,
    score_table,
    to_json,
    to_markdown,
)
from tests.helpers.tables import unpadded

RTE = TaskScore("rte", "RTE", "accuracy", True, (SetScore("rte", 277, 70.0, 3.0, "a"),))
COLA = TaskScore("cola", "CoLA", "matthews", True, (SetScore("cola", 1043, 40.0, 4.0, "b"),))
MNLI = TaskScore(
    "mnli", "MNLI", "accuracy", False,
    (SetScore("mnli", 9815, 83.0, 0.3, "c"), SetScore("mnli/mismatched", 9832, 85.0, 0.4, "d")),
)  # fmt: skip
SCORES = [COLA, RTE, MNLI]
SETTINGS = {
    "checkpoint": "runs/tag/checkpoint_best.pt", "subset": "valid", "model": "mt_tag_minilm",
    "encoder": {"layers": 6, "width": 384}, "trained_tasks": ["cola", "rte", "mnli"], "seed": 3,
}  # fmt: skip


def test_a_task_with_several_sets_counts_once():
    assert (MNLI.score, MNLI.examples) == (84.0, 19647)
    assert MNLI.standard_error == pytest.approx(math.sqrt(0.3**2 + 0.4**2) / 2)
    found = averages(SCORES)
    assert list(found) == ["small", "all", "all (CA-MTL)"]
    assert (found["small"].tasks, found["small"].score, found["small"].standard_error) == (2, 55.0, 2.5)
    assert found["all"].score == pytest.approx((40 + 70 + 84) / 3)


F1 = TaskScore("mrpc", "MRPC", "accuracy", True, (SetScore("mrpc", 408, 80.0, 3.0, "m", {"f1": (86.0, 4.0)}),))


def test_ca_mtls_average_counts_every_set_and_f1():
    found = averages([COLA, F1, MNLI])["all (CA-MTL)"]
    assert (found.tasks, found.score) == (4, (40 + 86 + 83 + 85) / 4)
    assert found.standard_error == pytest.approx(math.sqrt(4**2 + 4**2 + 0.3**2 + 0.4**2) / 4)
    assert list(averages([COLA, RTE])) == ["small", "all"]  # nothing counts otherwise


def test_the_majority_class_stands_beside_scores_and_one_prediction_is_said():
    sets = (
        SetScore("mnli", 10, 33.0, 1.0, "c", majority={"accuracy": 35.0}, constant="neutral"),
        SetScore("mnli/mismatched", 10, 40.0, 1.0, "d", majority={"accuracy": 36.0}),
    )
    one = TaskScore("mnli", "MNLI", "accuracy", False, sets)
    assert from_content(json.loads(to_json([COLA, one], SETTINGS)))[1] == [COLA, one]
    lines = unpadded(to_markdown([COLA, one], SETTINGS)).splitlines()
    assert lines[0] == "| task | metric | examples | score | majority |"
    assert (
        "| MNLI | accuracy | 20 | 36.50 ±0.71 | 35.50 |" in lines
        and "| CoLA | matthews | 1,043 | 40.00 ±4.00 | |" in lines
    )
    assert "| · mnli/mismatched | | 10 | 40.00 ±1.00 | 36.00 |" in lines
    assert "mnli: every prediction is `neutral`." in lines


def test_without_small_tasks_there_is_one_average():
    assert list(averages([MNLI])) == ["all"]


def test_the_file_gives_back_what_was_written():
    settings, scores = from_content(json.loads(to_json(SCORES, SETTINGS)))
    assert (settings, scores) == (SETTINGS, SCORES)


def test_an_error_that_is_not_known_is_null():
    one = TaskScore("rte", "RTE", "accuracy", True, (SetScore("rte", 1, 100.0, math.nan, "a"),))
    content = json.loads(to_json([one], {}))
    assert content["tasks"]["rte"]["standard_error"] is None and content["averages"]["all"]["standard_error"] is None
    assert math.isnan(from_content(content)[1][0].standard_error)
    assert "±" not in unpadded(score_table([one]).in_markdown())


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
PLACES = st.sampled_from(
    [(), ("tasks",), ("settings",), ("tasks", "mnli"), ("tasks", "mnli", "sets"), ("tasks", "mnli", "sets", "mnli"),
     ("tasks", "mnli", "sets", "mnli", "score"), ("tasks", "mnli", "sets", "mnli", "examples")]
)  # fmt: skip


@given(PLACES, VALUES)
def test_anything_else_is_no_scores(place, value):
    content = json.loads(to_json(SCORES, SETTINGS))
    inner = {"": content}
    for key in ("", *place)[:-1]:
        inner = inner[key]
    inner[("", *place)[-1]] = value
    whole = value if not place else content
    try:
        _, scores = from_content(whole)
    except ValueError:
        return
    json.loads(to_json(scores, {}))  # what is taken is scores


def test_the_table_has_the_papers_row_beside_it():
    row = published_row(SETTINGS, SETTINGS["trained_tasks"])
    lines = unpadded(to_markdown(SCORES, SETTINGS, row)).splitlines()
    assert lines[0] == "| task | metric | examples | score | MT-TaG, MiniLM (paper) |"
    assert "| RTE | accuracy | 277 | 70.00 ±3.00 | 81.1 |" in lines
    assert "| · mnli/mismatched | | 9,832 | 85.00 ±0.40 | |" in lines
    assert "| **Small** | **2 tasks** | | **55.00 ±2.50** | **61.1** |" in lines  # of the two: (81.1 + 41.1) / 2
    assert "- seed: 3" in lines


def test_the_screen_shows_the_same_cells():
    console = Console(width=100)
    with console.capture() as shown:
        console.print(score_table(SCORES, published_row(SETTINGS, SETTINGS["trained_tasks"])).on_screen())
    for cell in ("RTE", "70.00 ±3.00", "81.1", "MT-TaG, MiniLM (paper)", "55.00 ±2.50"):
        assert cell in shown.get()


def test_a_task_that_the_paper_has_not_leaves_its_average_out():
    sick = TaskScore("sick", "SICK", "accuracy", True, (SetScore("sick", 500, 80.0, 1.0, "e"),))
    lines = unpadded(
        score_table([RTE, sick], published_row(SETTINGS, SETTINGS["trained_tasks"])).in_markdown()
    ).splitlines()
    assert lines[-1] == "| **All** | **2 tasks** | | **75.00 ±1.58** | |"


# What the paper prints in its tables 1 and 11 as averages over small and over all tasks.
PRINTED = {
    ("Single-Task", "MiniLM"): (72.5, 80.9), ("MT-Dense", "MiniLM"): (74.9, 82.1),
    ("MT-Switch", "MiniLM"): (75.0, 82.1), ("MT-TaG", "MiniLM"): (75.9, 82.5),
    ("Single-Task", "BERT base"): (76.53, 83.34), ("MT-TaG", "BERT base"): (80.73, 85.45),
    ("Single-Task", "BERT large"): (78.85, 84.93), ("MT-TaG", "BERT large"): (82.73, 86.94),
}  # fmt: skip


OF_MT_TAG = [row for row in published_rows() if "Sparsely" in row.source]


@pytest.mark.parametrize("row", OF_MT_TAG, ids=lambda row: row.title)
def test_published_figures_have_the_averages_that_the_paper_prints(row):
    small, every = PRINTED[row.system, row.encoder]
    of_small = sum(row.figures[task] for task in ("rte", "mrpc", "stsb", "cola")) / 4
    assert of_small == pytest.approx(small, abs=0.051)
    assert sum(row.figures.values()) / 8 == pytest.approx(every, abs=0.051)


# What CA-MTL's table 9 prints as averages, in which MNLI counts twice, and F1 of MRPC and QQP.
PRINTED_WITH_F1 = {("CA-MTL", "BERT base"): 84.03, ("Single-Task", "BERT large"): 84.5, ("CA-MTL", "BERT large"): 86.6}


@pytest.mark.parametrize(
    "row", [row for row in published_rows() if row not in OF_MT_TAG], ids=lambda row: f"{row.title}: {row.source[:13]}"
)
def test_figures_of_ca_mtl_have_its_averages(row):
    every = PRINTED_WITH_F1[row.system, row.encoder]
    f1 = row.further["f1"]
    assert (sum(row.figures.values()) + row.figures["mnli"] + sum(f1.values())) / 9 == pytest.approx(every, abs=0.051)
    with_f1 = [(task, "f1", False) for task in f1] + [("mnli", "accuracy", True)] * 2
    others = [(task, "", True) for task in row.figures if task != "mnli"]
    assert float(row.mean_of_figures([*with_f1, *others])) == pytest.approx(every, abs=0.051)
    assert row.mean_of_figures([("mrpc", "accuracy", True)]) == ""


def test_accuracy_of_a_paper_does_not_stand_for_f1():
    row = OF_MT_TAG[0]
    assert "mrpc" in row.figures and row.mean_of_figures([("mrpc", "f1", False), ("rte", "accuracy", True)]) == ""


BASE = {"encoder": {"layers": 12, "width": 768}, "model": "ca_mtl_base"}
WHOLE = {"conditional": "norm,attention,bottleneck,alignment"}


@pytest.mark.parametrize(
    ("changed", "system"),
    [
        ({}, "MT-TaG"),
        ({"model": "mt_tag"}, "MT-TaG"),
        ({"model": "mt_dense_minilm"}, "MT-Dense"),
        ({"model": "mt_dense_minilm", "trained_tasks": ["rte"]}, "Single-Task"),
        ({"model": "mt_tagged"}, None),
        ({"trained_tasks": ["rte"]}, None),
        ({"trained_tasks": ["rte"], "finetune_from_model": "mixture.pt"}, "MT-TaG"),
        ({"model": "mt_dense", "trained_tasks": ["rte"], "finetune_from_model": "mixture.pt"}, "MT-Dense"),
        ({"encoder": {"layers": 2, "width": 384}}, None),
        ({"subset": "test"}, None),
        ({**BASE, **WHOLE}, "CA-MTL"),
        ({**BASE, "conditional": "attention"}, None),
        ({**BASE, "conditional": "none"}, None),
        (WHOLE, None),  # of MT-TaG
        ({"conditional": "none"}, "MT-TaG"),
    ],
)
def test_a_paper_stands_beside_the_same_system_alone(changed, system):
    row = published_row({**SETTINGS, **changed}, ["rte"])
    assert (row and row.system) == system


def grouped(task, group, score):
    return TaskScore(task, task, "accuracy", False, (SetScore(task, 100, score, 1.0),), group)


def test_groups_have_averages_where_there_are_several():
    tasks = [grouped("a", "GLUE", 80.0), grouped("b", "GLUE", 90.0), grouped("c", "NER", 50.0), grouped("d", "", 0.0)]
    assert groups(tasks) == {"GLUE": ["a", "b"], "NER": ["c"], "all": ["a", "b", "c", "d"]}
    assert groups(tasks[:2]) == {"all": ["a", "b"]}
    assert {name: mean.score for name, mean in averages(tasks).items()} == {"GLUE": 85, "NER": 50, "all": 55}
    read = from_content(json.loads(to_json(tasks, {})))[1]
    assert [score.group for score in read] == ["GLUE", "GLUE", "NER", ""]


def test_the_papers_averages_over_24_tasks_stand_beside_all_of_its_groups():
    settings = {"model": "ca_mtl_large", "conditional": "norm,attention,alignment,bottleneck", "subset": "valid",
                "encoder": {"layers": 24, "width": 1024}, "trained_tasks": ["rte", "record"]}  # fmt: skip
    row = published_row(settings, ["rte", "record"])
    tasks = [grouped(name, name, 70.0) for name in ("GLUE", "SuperGLUE", "MRQA", "NER")]
    shown = score_table(tasks, row).in_markdown()
    assert all(f"**{figure}**" in shown for figure in (86.6, 74.1, 79.5, 49.0, 79.1))
    assert "86.6" not in score_table(tasks[:3], row).in_markdown()
