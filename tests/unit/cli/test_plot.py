"""`mtmoe plot` writes pictures, or says in one sentence why not."""

import importlib.util
from functools import partial

import pytest
import torch

from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog
from fairseq_mtmoe.cli.plot import checkpoints_of, read_runs, task_embeddings, task_gates
from fairseq_mtmoe.errors import UserError
from tests.helpers.figure_logs import benchmark, translation
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.run_logs import events_of_a_run, write_run

plot = partial(mtmoe, "plot")


def write_log(folder, sparse=True, validations=3):
    events = events_of_a_run(pairs=2, validations=validations)
    return write_run(folder, [event for event in events if sparse or event["event"] != "experts"])


def write_checkpoint(run, model="mt_tag", tasks="cola,rte", name="checkpoint_last.pt", **weights):
    torch.save({"cfg": {"model": {"_name": model, "task_names": tasks}}, "model": weights}, run / name)
    return run


def write_benchmark(folder):
    drawn = {"event": "sampling", "epoch": 1, "temperature": None, "probabilities": {"cola": 0.75, "rte": 0.25}}
    return write_run(folder, [*benchmark(), drawn])


GATES = {f"encoder.layers.{block}.moe.gate.weight": torch.randn(2, 4, 8) for block in range(2)}


def test_three_pictures_and_their_paths(tmp_path):
    run, names = write_log(tmp_path / "run"), ("sampling", "experts", "perplexity")
    assert plot(run).splitlines() == [f"{name}: {run}/plots/{name}.png" for name in names]
    assert all((run / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)


def test_several_runs_are_compared_in_the_folder_of_choice(tmp_path):
    runs = [write_log(tmp_path / "k1"), write_log(tmp_path / "k3", validations=2)]
    plot(*runs, "--out", tmp_path / "out", "--labels", "k = 1,k = 3", "--format", "svg", "--over", "minutes")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"sampling.svg", "experts.svg", "perplexity.svg"}
    assert [run.name for run in read_runs(runs)] == ["k1", "k3"]
    assert [run.name for run in read_runs(runs, ("a", "b"))] == ["a", "b"]


def test_languages_layers_and_updates_can_be_chosen_where_there_are_experts(tmp_path):
    run, dense = write_log(tmp_path / "run"), write_log(tmp_path / "dense", sparse=False)
    plot(run, "--langs", "ab", "--layers", "encoder.layers.1", "--updates", "333,1000", "--format", "svg")
    for arguments in (("--langs", "fr"), ("--layers", "enc.2"), ("--updates", "last"), ("--labels", "a,b")):
        with refused(arguments[0]):
            plot(run, *arguments)
    with refused("--langs"):  # before anything is drawn
        plot(dense, run, "--langs", "xx")
    assert not (dense / "plots").exists()
    assert "experts: not drawn, because the model has no expert layers yet" in plot(dense)
    assert {path.name for path in (dense / "plots").iterdir()} == {"sampling.png", "perplexity.png"}


def test_a_folder_without_a_log_a_log_without_numbers_and_a_node_without_altair(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="There is no run log"):
        plot(tmp_path)
    RunLog(tmp_path / FILE_NAME).write("run", arch="base_moe")
    with pytest.raises(UserError, match="nothing to plot yet"):
        plot(tmp_path)
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "altair" else there(name))
    with refused("pip install altair"):
        plot(write_log(tmp_path))
    assert not (tmp_path / "plots").exists()


def test_a_benchmark_has_metrics_and_gates_in_the_place_of_perplexity(tmp_path):
    run = write_checkpoint(write_benchmark(tmp_path / "run"), **GATES)
    layers = {"encoder.layers.0": [[3, 1], [1, 3]]}
    RunLog(run / FILE_NAME).write("experts", update=20, task_names=["cola", "rte"], layers=layers)
    names = ("sampling", "experts", "metrics", "gates")
    assert plot(run, "--tasks", "rte").splitlines() == [f"{name}: {run}/plots/{name}.png" for name in names]


def test_a_benchmark_without_experts_refuses_unknown_names_and_says_that_there_are_none(tmp_path):
    run = write_checkpoint(write_benchmark(tmp_path / "run"), "ca_mtl", a=torch.zeros(1))
    for option, name in (("--tasks", "mnli"), ("--layers", "encoder.layers.0")):
        with refused(option):
            plot(run, option, name)
    assert not (run / "plots").exists()
    assert "experts: not drawn, because ca_mtl has no experts\n" in plot(run, "--tasks", "rte")


def states_of(run):
    return checkpoints_of(read_runs([run]), [run])


def test_gates_are_read_from_the_best_checkpoint_by_block(tmp_path):
    run = write_checkpoint(write_benchmark(tmp_path / "run"), **GATES)
    tasks, weights = task_gates(states_of(run)["run"])
    assert tasks == ["cola", "rte"] and list(weights) == ["encoder.layers.0", "encoder.layers.1"]
    one_for_all = {"encoder.layers.0.moe.gate.weight": torch.zeros(4, 8)}
    write_checkpoint(run, tasks="", name="checkpoint_best.pt", **one_for_all)
    assert task_gates(states_of(run)["run"]) is None
    (run / "checkpoint_best.pt").write_bytes(b"no checkpoint")
    assert states_of(run) == {}


def test_every_other_kind_of_event_and_task_embeddings_have_pictures(tmp_path):
    run = write_run(tmp_path / "run", [event for event in translation() if event.get("epoch", 1) == 1])
    RunLog(run / FILE_NAME).write("sampling", epoch=1, temperature=None, probabilities={}, of_candidates=True)
    write_checkpoint(run, **{"encoder.task_embeddings.weight": torch.randn(2, 8)})
    assert task_embeddings(states_of(run)["run"])[0] == ["cola", "rte"]
    why = "because uncertainty sampling draws candidates of all tasks alike; see the chart of selection"
    names = ("experts", "perplexity", "selection", "sources", "gate_movement", "embeddings")
    expected = [f"sampling: not drawn, {why}", *(f"{name}: {run}/plots/{name}.png" for name in names)]
    assert plot(run).splitlines() == expected
