"""`mtmoe plot` writes pictures, or says in one sentence why not."""

import importlib.util
import math
from functools import partial

import pytest
import torch

from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog
from fairseq_mtmoe.cli.plot import checkpoints_of, read_runs, task_embeddings, task_gates
from fairseq_mtmoe.errors import UserError
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused

plot = partial(mtmoe, "plot")


def write_log(folder, sparse=True, epochs=3):
    log = RunLog(folder / FILE_NAME)
    for epoch in range(1, epochs + 1):
        log.write("sampling", epoch=epoch, temperature=1.0, probabilities={"en-de": 0.7, "en-lv": 0.3})
        groups = {"high": {"ppl": 9.0 / epoch}, "low": {"ppl": 20.0 / epoch}}
        log.write("valid", update=epoch * 10, minutes=1.0, subset="valid", tiers=groups, all={"ppl": 12.0 / epoch})
        if sparse:
            log.write("experts", update=epoch * 10, task_names=["de", "lv"], layers={"enc.1": [[3, 1], [1, 3]]})
    return folder


def write_benchmark(folder, checkpoint=True, sparse=True):
    """A run of `--task glue` with a task gate in each of two blocks, or of CA-MTL."""
    log = RunLog(folder / FILE_NAME)
    log.write("run", sizes={"cola": 300, "rte": 100}, task_names=["cola", "rte"])
    log.write("sampling", epoch=1, temperature=None, probabilities={"cola": 0.75, "rte": 0.25})
    for update in (10, 20):
        tasks = {"cola": {"loss": 0.5, "matthews": float(update)}, "rte": {"loss": 0.5, "accuracy": 60.0}}
        log.write("valid", update=update, minutes=1.0, subset="valid", tasks=tasks, groups={"all": {"mean": 40.0}},
                  all={"loss": 0.5})  # fmt: skip
        if sparse:
            layers = {"encoder.layers.0": [[3, 1], [1, 3]]}
            log.write("experts", update=update, task_names=["cola", "rte"], layers=layers)
    if not sparse:
        state = {"cfg": {"model": {"_name": "ca_mtl", "task_names": "cola,rte"}}, "model": {"a": torch.zeros(1)}}
        torch.save(state, folder / "checkpoint_last.pt")
    elif checkpoint:
        gates = {f"encoder.layers.{n}.moe.gate.weight": torch.randn(2, 4, 8) for n in range(2)}
        cfg = {"model": {"_name": "mt_tag", "task_names": "cola,rte"}}
        state = {"cfg": cfg, "model": {**gates, "heads.cola.weight": torch.zeros(2, 8)}}
        torch.save(state, folder / "checkpoint_last.pt")
    return folder


def test_three_pictures_and_their_paths(tmp_path):
    run, names = write_log(tmp_path / "run"), ("sampling", "experts", "perplexity")
    assert plot(run).splitlines() == [f"{name}: {run}/plots/{name}.png" for name in names]
    assert all((run / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)


def test_a_node_without_altair_says_so(tmp_path, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "altair" else there(name))
    with refused("pip install altair"):
        plot(write_log(tmp_path / "run"))


def test_several_runs_are_compared_in_the_folder_of_choice(tmp_path):
    runs = [write_log(tmp_path / "k1"), write_log(tmp_path / "k3", epochs=2)]
    plot(*runs, "--out", tmp_path / "out", "--labels", "k = 1,k = 3", "--format", "svg", "--over", "minutes")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"sampling.svg", "experts.svg", "perplexity.svg"}
    assert [run.name for run in read_runs(runs)] == ["k1", "k3"]
    assert [run.name for run in read_runs(runs, ("a", "b"))] == ["a", "b"]


def test_languages_layers_and_updates_can_be_chosen(tmp_path):
    run, dense = write_log(tmp_path / "run"), write_log(tmp_path / "dense", sparse=False)
    plot(run, "--langs", "lv", "--layers", "enc.1", "--updates", "10,30", "--format", "svg")
    for arguments in (("--langs", "fr"), ("--layers", "enc.2"), ("--updates", "last"), ("--labels", "a,b")):
        with refused(arguments[0]):
            plot(run, *arguments)
    with refused("--langs"):  # before anything is drawn
        plot(dense, run, "--langs", "xx")
    assert not (dense / "plots").exists()


def test_a_dense_run_has_no_experts_to_draw(tmp_path):
    said = plot(write_log(tmp_path / "run", sparse=False))
    assert "experts: not drawn, because the model has no expert layers yet" in said
    assert {path.name for path in (tmp_path / "run" / "plots").iterdir()} == {"sampling.png", "perplexity.png"}


def test_a_folder_without_a_log_and_a_log_without_numbers(tmp_path):
    with pytest.raises(UserError, match="There is no run log"):
        plot(tmp_path)
    RunLog(tmp_path / FILE_NAME).write("run", arch="base_moe")
    with pytest.raises(UserError, match="nothing to draw yet"):
        plot(tmp_path)
    assert not (tmp_path / "plots").exists()


def test_a_benchmark_has_metrics_and_gates_in_the_place_of_perplexity(tmp_path):
    run = write_benchmark(tmp_path / "run")
    names = ("sampling", "experts", "metrics", "gates")
    assert plot(run, "--tasks", "rte").splitlines() == [f"{name}: {run}/plots/{name}.png" for name in names]


def test_a_benchmark_without_experts_refuses_unknown_names_and_says_that_there_are_none(tmp_path):
    run = write_benchmark(tmp_path / "run", sparse=False)
    for option, name in (("--tasks", "mnli"), ("--layers", "encoder.layers.0")):
        with refused(option):
            plot(run, option, name)
    assert not (run / "plots").exists()
    assert "experts: not drawn, because ca_mtl has no experts\n" in plot(run, "--tasks", "rte")


def states_of(run):
    return checkpoints_of(read_runs([run]), [run])


def test_gates_are_read_from_the_best_checkpoint_by_block(tmp_path):
    run = write_benchmark(tmp_path / "run")
    tasks, weights = task_gates(states_of(run)["run"])
    assert tasks == ["cola", "rte"] and list(weights) == ["encoder.layers.0", "encoder.layers.1"]
    best = {"cfg": {"model": {"task_names": ""}}, "model": {"encoder.layers.0.moe.gate.weight": torch.zeros(4, 8)}}
    torch.save(best, run / "checkpoint_best.pt")
    assert task_gates(states_of(run)["run"]) is None  # one gate for all
    (run / "checkpoint_best.pt").write_bytes(b"no checkpoint")
    assert states_of(run) == {}


def test_every_other_kind_of_event_and_task_embeddings_have_pictures(tmp_path):
    run = write_benchmark(tmp_path / "run", checkpoint=False)
    log = RunLog(run / FILE_NAME)
    log.write("sampling", epoch=1, temperature=None, probabilities={"cola": 1}, of_candidates=True)  # takes one back
    for update in (10, 20):
        counts = {"cola": update, "rte": 32 - update}
        log.write("selection", update=update, trained=counts, relative_entropy={"cola": 0.9, "rte": None})
        log.write("sources", update=update, subset="valid", target="rte", sources=["mnli", "qnli"],
                  layers={"encoder.layers.0": [0.75, 0.25], "decoder.layers.0": [math.nan, math.nan]})  # fmt: skip
        log.write("gates", update=update, subset="valid", layers={"a": {"blend": 0.01 * update, "moved": None}})
    table = torch.randn(2, 8)
    state = {"cfg": {"model": {"task_names": "cola,rte"}}, "model": {"encoder.task_embeddings.weight": table}}
    torch.save(state, run / "checkpoint_last.pt")
    assert task_embeddings(states_of(run)["run"])[0] == ["cola", "rte"]
    why = "because uncertainty sampling draws candidates of all tasks alike; selection is what it trains on"
    names = ("experts", "metrics", "selection", "sources", "gate_movement", "embeddings")
    expected = [f"sampling: not drawn, {why}", *(f"{name}: {run}/plots/{name}.png" for name in names)]
    assert plot(run).splitlines() == expected
