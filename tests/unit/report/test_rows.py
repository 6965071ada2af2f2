"""Rows are what was logged: the figures that earlier readers made, to 1e-9, and what odd logs do."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fairseq_mtmoe.report.differences import Sampling, find_differences
from fairseq_mtmoe.report.eval_folders import read_evaluations
from fairseq_mtmoe.report.routing import entropies, shares
from fairseq_mtmoe.report.rows import data_shares, run_names, run_of
from tests.helpers.evaluations import write_evaluation
from tests.helpers.figure_logs import benchmark, translation

FROZEN = json.loads((Path(__file__).parents[2] / "golden" / "figures.json").read_text())
SAMPLING = [{"event": "sampling", "epoch": epoch, "temperature": 1.0, "probabilities": shares} for epoch, shares in (
    (1, {"en-lv": 0.2, "en-fr": 0.8}), (2, {"en-lv": 0.3, "en-fr": 0.6, "en-de": 0.1}))]  # fmt: skip


def numbers(values):
    size = max((len(one) for one in values if isinstance(one, list)), default=0)
    return np.array([[math.nan] * size if one == [] else math.nan if one is None else one for one in values], float)


@pytest.mark.parametrize(("name", "events"), [("translation", translation()), ("benchmark", benchmark())])
def test_figures_are_those_of_earlier_readers(name, events):
    run, of_experts = run_of(events, name), {"shares": shares, "entropy": entropies}
    for frozen in FROZEN[name]["rows"]:
        asked = of_experts.get(frozen["metric"]) if frozen["group"] == "experts" else None
        metric = "tokens" if asked else frozen["metric"]
        (row,) = run.of(frozen["group"], metric=metric, task=frozen["task"], layer=frozen["layer"])
        np.testing.assert_allclose(asked(row.value) if asked else row.value, numbers(frozen["value"]), rtol=1e-9)
        np.testing.assert_array_equal(row.update, numbers(frozen["update"]))
    assert run.data == pytest.approx(FROZEN[name]["data"], rel=1e-9)
    assert run.sparsified.tolist() == [at for at in [FROZEN[name]["sparsified_at"]] if at is not None]


def test_differences_and_their_significance_are_those_of_earlier_versions(tmp_path):
    folders = [write_evaluation(tmp_path / name, wrong, seed, sentences=25)
               for name, wrong, seed in (("a", 0.3, 1), ("b", 0.5, 2))]  # fmt: skip
    found = find_differences(read_evaluations(folders), Sampling(7, 60, 80))
    of = {(one.metric, name): row for one in found for name, row in {**one.pairs, **one.groups}.items()}
    assert len(of) == len(FROZEN["differences"])
    for frozen in FROZEN["differences"]:
        row = vars(of[frozen.pop("metric"), frozen.pop("of")])
        assert {name: pytest.approx(value, rel=1e-9) for name, value in frozen.items()} == row


def test_sampling_is_by_pair_the_most_frequent_first_with_its_synthetic_part():
    run = {"event": "run", "synthetic": {"en-fr": 0.25, "en-is": 0.5}}
    rows = run_of([run, *SAMPLING, {**SAMPLING[1], "of_candidates": True}], "run").of("sampling", metric="probability")
    assert [row.task for row in rows] == ["en-fr", "en-fr, back-translated", "en-lv", "en-de"]
    assert rows[1].value.tolist() == pytest.approx([0.2, 0.15])
    assert str(rows[3].value.tolist()) == "[nan, 0.1]" and rows[0].epoch.tolist() == [1, 2]


def test_of_several_validation_subsets_the_first_counts():
    def valid(update, subset, ppl):
        return {"event": "valid", "update": update, "subset": subset, "tiers": {"low": {"ppl": ppl}}, "all": {}}

    run = run_of([valid(10, "valid", 30.0), valid(10, "test", 1.0), valid(20, "valid", None)], "run")
    (row,) = run.rows
    assert (row.group, row.task, row.subset) == ("tier", "low", "valid")
    assert row.value[0] == 30 and math.isnan(row.value[1]) and row.best_index == 0


def test_experts_have_the_tokens_of_tasks_and_layers_that_had_some():
    def experts(update, **layers):
        return {"event": "experts", "update": update, "task_names": ["de", "lv", "en"], "layers": layers}

    run = run_of([experts(10, enc=[[1, 3], [0, 0], [0, 0]], one=[[5, 5]]),
                  experts(20, enc=[[2, 2], [4, 1], [0, 0]], one=[[5, 5]])], "run")  # fmt: skip
    found = {(row.layer, row.task): row.value for row in run.of("experts")}
    assert list(found) == [("enc", "de"), ("enc", "lv"), ("one", "all tokens")]  # `one` does not tell tasks apart
    assert found["enc", "de"].tolist() == [[1, 3], [2, 2]]
    assert np.isnan(found["enc", "lv"][0]).all() and found["enc", "lv"][1].tolist() == [4, 1]
    for layers, tasks in (({"enc": [[1, 3]]}, ["de"]), ({"enc": [[0, 0]]}, []), ({}, [])):
        event = {"event": "experts", "update": 1, "task_names": ["de"], "layers": layers}
        assert [row.task for row in run_of([event], "run").rows] == tasks


def test_resources_are_shares_of_the_training_sentences():
    run = {"event": "run", "sizes": {"en-lv": 100, "en-fr": 200, "de-fr": 100}}
    assert data_shares([run]) == {"lv": 0.25, "fr": 0.75}
    assert data_shares([{**run, "task_ids": "source"}]) == {"en": 0.75, "de": 0.25}
    assert data_shares([{**run, "task_ids": "pair"}]) == {"en-lv": 0.25, "en-fr": 0.5, "de-fr": 0.25}
    tasks = {"event": "run", "sizes": {"cola": 300, "rte": 100}, "task_names": ["rte", "cola"]}
    assert data_shares([tasks]) == {"cola": 0.75, "rte": 0.25}
    assert data_shares([{"event": "run"}]) == {} and data_shares([{"event": "run", "sizes": {"en-de": 0}}]) == {"de": 0}


def test_names_of_runs_tell_them_apart():
    for paths in (["x/base/1", "y/base/1"], ["base/1", "dense/1"]):
        assert run_names(paths) == paths
    assert run_names(["a/base", "a/dense"]) == ["base", "dense"]
