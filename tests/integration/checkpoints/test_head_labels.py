"""Heads and their moments follow the names of labels, in whatever order a table has them."""

import copy

import numpy as np
import pytest
import torch
import yaml

from fairseq_mtmoe.checkpoints.head_labels import labels_of, labels_to_text, match_labels
from fairseq_mtmoe.checkpoints.rewriting import average
from fairseq_mtmoe.nlu.data.table import load_tables
from tests.helpers.benchmark import task_arguments
from tests.helpers.refused import refused
from tests.helpers.training import run_here

LABELS = {"mine": ["no", "maybe", "yes"], "value": []}
ORDERED = {"mine": ["yes", "no", "maybe"], "value": []}
ORDER = [2, 0, 1]
PARAMETERS = [("heads.mine.weight", (3, 3)), ("heads.mine.bias", (3,)), ("other", (3, 3))]
NAMES = [name for name, _ in PARAMETERS]


def saved(moments=None, seed=1):
    generator = torch.Generator().manual_seed(seed)
    model = {name: torch.randn(shape, generator=generator) for name, shape in PARAMETERS}
    return {
        "cfg": {"model": {"head_labels": labels_to_text(LABELS)}}, "model": model, "last_optimizer_state": moments,
        "extra_state": {"ema": copy.deepcopy(model)},
    }  # fmt: skip


def adam(value):
    return {"step": 3, "exp_avg": value, "exp_avg_sq": value.abs()}


def of_optimizer(entries):
    return {"state": dict(enumerate(entries)), "param_groups": [{"params": list(range(len(entries)))}]}


@pytest.mark.parametrize("flat", [False, True])
def test_weights_averages_and_moments_follow_their_labels_once(flat):
    before = saved()
    values = [before["model"][name] for name in NAMES]
    whole = torch.cat([value.flatten() for value in values])
    state = copy.deepcopy(before)
    state["last_optimizer_state"] = of_optimizer([adam(whole)] if flat else list(map(adam, values)))
    for _ in range(2):  # a state that was matched says so
        match_labels("run.pt", state, ORDERED, PARAMETERS)
    expected = [values[0][ORDER], values[1][ORDER], values[2]]
    for named in (state["model"], state["extra_state"]["ema"]):
        assert all(torch.equal(named[name], value) for name, value in zip(NAMES, expected, strict=True))
    moments = [state["last_optimizer_state"]["state"][n]["exp_avg"].flatten() for n in range(1 if flat else 3)]
    assert torch.equal(torch.cat(moments), torch.cat([value.flatten() for value in expected]))
    assert labels_of("run.pt", state["cfg"]["model"]) == ORDERED


def test_adafactors_columns_stay():
    rows, columns, bias = (torch.arange(3.0) + n for n in range(3))
    entries = [{"exp_avg_sq_row": rows, "exp_avg_sq_col": columns}, {"exp_avg_sq": bias}, {}]
    state = saved(of_optimizer(entries))
    match_labels("run.pt", state, ORDERED, PARAMETERS)
    weight, of_bias, _ = state["last_optimizer_state"]["state"].values()
    assert torch.equal(weight["exp_avg_sq_row"], rows[ORDER]) and torch.equal(weight["exp_avg_sq_col"], columns)
    assert torch.equal(of_bias["exp_avg_sq"], bias[ORDER])


def test_damaged_and_other_labels_are_refused():
    for text in ("{", '{"mine": [1]}'):
        with refused("run.pt"):
            labels_of("run.pt", {"head_labels": text})
    for labels in (["no", "maybe", "yes", "yes"], ["no", "may be", "yes"]):
        with refused("mine: labels"):
            match_labels("run.pt", saved(), {"mine": labels})


def test_an_average_is_of_the_same_labels(tmp_path):
    paths, state = [tmp_path / "first.pt", tmp_path / "second.pt"], saved()
    torch.save(state, paths[0])
    mean = {name: value.clone() for name, value in state["model"].items()}
    match_labels("second.pt", state, ORDERED)
    torch.save(state, paths[1])
    averaged = average(paths)["model"]
    assert all(torch.allclose(averaged[name], mean[name]) for name in mean)


# ---- runs ----

TASKS = ("cola", "wic", "wnut17", "copa")


def test_a_run_goes_on_and_begins_with_labels_in_another_order(benchmark, tmp_path):
    """It makes the same updates, with the optimizer's moments and without."""
    options = ("--glue-tasks", ",".join(TASKS), "--init-encoder", benchmark / "encoder.pt", "--disable-validation",
               "--arch", "mt_tag", "--dense-updates", 3, "--lr", 0.01, "--adam-eps", 1e-3)  # fmt: skip
    last = tmp_path / "begun" / "checkpoint_last.pt"
    run_here(task_arguments(benchmark, last.parent, *options, "--max-update", 5))
    rows, orders, table = load_tables(), {}, {}
    for task in TASKS[:3]:
        count = len(rows[task].labels)
        orders[task] = [0, *range(count - 1, 0, -1)] if task == "wnut17" else [1, 0]
        table[task] = {"like": task, "labels": [rows[task].labels[n] for n in orders[task]]}
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(table))
    for name, begin in (("goes on", "--restore-file"), ("begins", "--finetune-from-model")):
        runs = []
        for more in ((), ("--task-table", tmp_path / "table.yaml")):
            folder = tmp_path / f"{name} {len(more)}"
            runs.append(run_here(task_arguments(benchmark, folder, *options, begin, last, "--max-update", 9, *more)))
        same, other = runs
        np.testing.assert_allclose(other["losses"], same["losses"], rtol=1e-4, err_msg=name)
        for key, value in same["parameters"].items():
            order = orders.get(key.removeprefix("heads.").rpartition(".")[0])
            np.testing.assert_allclose(
                other["parameters"][key], value if order is None else value[order], atol=1e-4, err_msg=f"{name}: {key}"
            )
