"""A benchmark's scores: each task once in an average, and the files say what the table says."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fairseq_mtmoe.analysis.score_files import scores_in, scores_of_tasks
from fairseq_mtmoe.analysis.score_tables import published_row, published_rows, score_table, to_json, to_markdown
from tests.helpers.benchmark_scores import set_of, task_of
from tests.helpers.tables import unpadded

RTE, COLA = task_of("rte", set_of(70.0, 3.0, 277)), task_of("cola", set_of(40.0, 4.0, 1043))
MNLI = task_of("mnli", set_of(83.0, 0.3, 9815), set_of(85.0, 0.4, 9832))
F1 = task_of("mrpc", set_of(80.0, 3.0, 408, also={"f1": (86.0, 4.0)}))
SETTINGS = {
    "checkpoint": "runs/tag/checkpoint_best.pt", "subset": "valid", "model": "mt_tag_minilm",
    "encoder": {"layers": 6, "width": 384}, "trained_tasks": ["cola", "rte", "mnli"], "seed": 3,
}  # fmt: skip
SCORES = scores_of_tasks({**COLA, **RTE, **MNLI}, SETTINGS)


def averages(tasks):
    return {row.task: row for row in scores_of_tasks(tasks, {}).averages}


def test_a_task_with_several_sets_counts_once():
    mnli = SCORES.own["mnli"]
    assert (mnli.figure, mnli.n, mnli.stderr) == (84.0, 19647, pytest.approx(math.sqrt(0.3**2 + 0.4**2) / 2))
    small, every, _ = SCORES.averages
    assert (small.task, small.n, small.figure, small.stderr) == ("small", 2, 55.0, 2.5)
    assert (every.task, every.figure) == ("all", pytest.approx((40 + 70 + 84) / 3))
    assert list(averages(MNLI)) == ["all"]


def test_ca_mtls_average_counts_every_set_and_f1():
    found = averages({**COLA, **F1, **MNLI})["all (CA-MTL)"]
    assert (found.n, found.figure) == (4, (40 + 86 + 83 + 85) / 4)
    assert found.stderr == pytest.approx(math.sqrt(4**2 + 4**2 + 0.3**2 + 0.4**2) / 4)
    assert list(averages({**COLA, **RTE})) == ["small", "all"]  # nothing counts otherwise


def test_the_majority_class_stands_beside_scores_and_one_prediction_is_said():
    sets = (set_of(33.0, examples=10, majority={"accuracy": 35.0}, constant="neutral"),
            set_of(40.0, examples=10, majority={"accuracy": 36.0}))  # fmt: skip
    scores = scores_of_tasks({**COLA, **task_of("mnli", *sets)}, SETTINGS)
    assert scores_in(json.loads(to_json(scores))).majority == {"mnli": 35.5}
    lines = unpadded(to_markdown(scores)).splitlines()
    assert lines[0] == "| task | metric | examples | score | majority |"
    assert {"| MNLI | accuracy | 20 | 36.50 ±0.71 | 35.50 |", "| CoLA | matthews | 1,043 | 40.00 ±4.00 | |",
            "| · mnli/2 | | 10 | 40.00 ±1.00 | 36.00 |"} <= set(lines)  # fmt: skip
    assert "mnli: every prediction is `neutral`." in lines


def test_an_error_that_is_not_known_is_null():
    scores = scores_of_tasks(task_of("rte", set_of(100.0, math.nan, 1)), {})
    content = json.loads(to_json(scores))
    assert content["tasks"]["rte"]["standard_error"] is None and content["averages"]["all"]["standard_error"] is None
    assert math.isnan(scores_in(content).own["rte"].stderr)
    assert "±" not in unpadded(score_table(scores).in_markdown())


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
    content = json.loads(to_json(SCORES))
    inner = {"": content}
    for key in ("", *place)[:-1]:
        inner = inner[key]
    inner[("", *place)[-1]] = value
    try:
        scores = scores_in(value if not place else content)
    except ValueError:
        return
    json.loads(to_json(scores))  # what is taken is scores


def test_the_table_has_the_papers_row_beside_it_and_the_screen_the_same_cells():
    row = published_row(SCORES)
    lines = unpadded(to_markdown(SCORES, row)).splitlines()
    assert lines[0] == "| task | metric | examples | score | MT-TaG, MiniLM (paper) |"
    assert {"| RTE | accuracy | 277 | 70.00 ±3.00 | 81.1 |", "| · mnli/2 | | 9,832 | 85.00 ±0.40 | |", "- seed: 3",
            "| **Small** | **2 tasks** | | **55.00 ±2.50** | **61.1** |"} <= set(lines)  # fmt: skip
    console = Console(width=100)
    with console.capture() as shown:
        console.print(score_table(SCORES, row).on_screen())
    assert all(cell in shown.get() for cell in ("RTE", "70.00 ±3.00", "81.1", "MT-TaG, MiniLM (paper)", "55.00 ±2.50"))


def test_a_task_that_the_paper_has_not_leaves_its_average_out():
    scores = scores_of_tasks({**RTE, **task_of("sick", set_of(80.0))}, SETTINGS)
    lines = unpadded(score_table(scores, published_row(scores)).in_markdown()).splitlines()
    assert lines[-1] == "| **All** | **2 tasks** | | **75.00 ±1.58** | |"


# What MT-TaG's paper prints in its tables 1 and 11 as averages over all tasks, and CA-MTL's in its table 9, in which
# MNLI counts twice, and F1 of MRPC and QQP.
PRINTED = {
    ("Single-Task", "MiniLM"): 80.9, ("MT-Dense", "MiniLM"): 82.1, ("MT-Switch", "MiniLM"): 82.1,
    ("MT-TaG", "MiniLM"): 82.5, ("Single-Task", "BERT base"): 83.34, ("MT-TaG", "BERT base"): 85.45,
    ("Single-Task", "BERT large"): 84.93, ("MT-TaG", "BERT large"): 86.94,
}  # fmt: skip
PRINTED_WITH_F1 = {("CA-MTL", "BERT base"): 84.03, ("Single-Task", "BERT large"): 84.5, ("CA-MTL", "BERT large"): 86.6}


def test_published_figures_have_the_averages_that_the_papers_print():
    for row in published_rows():
        if "Sparsely" in row.source:
            mean = float(row.mean_of((task, "") for task in row.figures))
            assert mean == pytest.approx(PRINTED[row.system, row.encoder], abs=0.101)
            assert row.mean_of([("mrpc", "f1"), ("rte", "")]) == ""  # accuracy does not stand for F1
        else:
            others = [(task, "") for task in row.figures] + [("mnli", "")]
            mean = float(row.mean_of([*((task, "f1") for task in row.further["f1"]), *others]))
            assert mean == pytest.approx(PRINTED_WITH_F1[row.system, row.encoder], abs=0.101)


BASE = {"encoder": {"layers": 12, "width": 768}, "model": "ca_mtl_base"}
WHOLE = {"conditional": "norm,attention,bottleneck,alignment"}


@pytest.mark.parametrize(
    ("changed", "system"),
    [
        ({"conditional": "none"}, "MT-TaG"),
        ({"model": "mt_dense_minilm", "trained_tasks": ["rte"]}, "Single-Task"),
        ({"model": "mt_tagged"}, None),
        ({"model": "mt_dense", "trained_tasks": ["rte"], "finetune_from_model": "mixture.pt"}, "MT-Dense"),
        ({"encoder": {"layers": 2, "width": 384}}, None),
        ({"subset": "test"}, None),
        ({**BASE, **WHOLE}, "CA-MTL"),
        ({**BASE, "conditional": "attention"}, None),
    ],
)
def test_a_paper_stands_beside_the_same_system_alone(changed, system):
    row = published_row(scores_of_tasks(RTE, {**SETTINGS, **changed}))
    assert (row and row.system) == system


def test_groups_have_averages_where_there_are_several():
    tasks = {
        name: task_of(name, set_of(score), group=group)[name]
        for name, group, score in (("a", "GLUE", 80.0), ("b", "GLUE", 90.0), ("c", "NER", 50.0), ("d", "", 0.0))
    }
    scores = scores_in(json.loads(to_json(scores_of_tasks(tasks, {}))))
    assert scores.groups == {"GLUE": ["a", "b"], "NER": ["c"], "all": ["a", "b", "c", "d"]}
    assert {row.task: row.figure for row in scores.averages} == {"GLUE": 85, "NER": 50, "all": 55}
    assert list(averages({name: tasks[name] for name in "ab"})) == ["all"]


def test_the_papers_averages_over_24_tasks_stand_beside_all_of_its_groups():
    settings = {"model": "ca_mtl_large", "conditional": "norm,attention,alignment,bottleneck", "subset": "valid",
                "encoder": {"layers": 24, "width": 1024}, "trained_tasks": ["rte", "record"]}  # fmt: skip
    row = published_row(scores_of_tasks(RTE, settings))
    tasks = {name: task_of(name, set_of(70.0), group=name)[name] for name in ("GLUE", "SuperGLUE", "MRQA", "NER")}
    shown = score_table(scores_of_tasks(tasks, settings), row).in_markdown()
    assert all(f"**{figure}**" in shown for figure in (86.6, 74.1, 79.5, 49.0, 79.1))
    del tasks["NER"]
    assert "86.6" not in score_table(scores_of_tasks(tasks, settings), row).in_markdown()
