"""`mtmoe plot` writes three pictures, or says in one sentence why not."""

import importlib.util
import math

import pytest
import torch
from click.testing import CliRunner

from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog
from fairseq_mtmoe.cli.plot import checkpoints_of, command, read_runs, task_embeddings, task_gates
from fairseq_mtmoe.errors import UserError


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


def plot(*arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments], catch_exceptions=False)


def test_three_pictures_and_their_paths(tmp_path):
    run = write_log(tmp_path / "run")
    result = plot(run)
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"{name}: {run}/plots/{name}.png" for name in ("sampling", "experts", "perplexity")
    ]
    for name in ("sampling", "experts", "perplexity"):
        assert (run / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_node_without_altair_says_so(tmp_path, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "altair" else there(name))
    with pytest.raises(UserError, match="Charts need altair: `pip install altair` brings it"):
        plot(write_log(tmp_path / "run"))


def test_several_runs_are_compared_in_the_folder_of_choice(tmp_path):
    runs = [write_log(tmp_path / "k1"), write_log(tmp_path / "k3", epochs=2)]
    result = plot(*runs, "--out", tmp_path / "out", "--labels", "k = 1,k = 3", "--format", "svg", "--over", "minutes")
    assert result.exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"sampling.svg", "experts.svg", "perplexity.svg"}
    assert [run.name for run in read_runs(runs)] == ["k1", "k3"]
    assert [run.name for run in read_runs(runs, ("a", "b"))] == ["a", "b"]


def test_languages_layers_and_updates_can_be_chosen(tmp_path):
    run = write_log(tmp_path / "run")
    assert plot(run, "--langs", "lv", "--layers", "enc.1", "--updates", "10,30").exit_code == 0
    with pytest.raises(UserError, match="`--langs` must be some of de, lv, but is 'fr'"):
        plot(run, "--langs", "fr")
    with pytest.raises(UserError, match=r"`--layers` must be some of enc\.1"):
        plot(run, "--layers", "enc.2")
    with pytest.raises(UserError, match="`--updates` must be numbers"):
        plot(run, "--updates", "last")
    with pytest.raises(UserError, match="`--labels` must be 1 names"):
        plot(run, "--labels", "a,b")
    with pytest.raises(UserError, match="`--langs` must be some of"):  # before anything is drawn
        plot(write_log(tmp_path / "dense", sparse=False), run, "--langs", "xx")
    assert not (tmp_path / "dense" / "plots").exists()


def test_a_dense_run_has_no_experts_to_draw(tmp_path):
    result = plot(write_log(tmp_path / "run", sparse=False))
    assert result.exit_code == 0
    assert "experts: not drawn, because the model has no expert layers yet" in result.output
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
    assert plot(run, "--tasks", "rte").output.splitlines() == [f"{name}: {run}/plots/{name}.png" for name in names]
    with pytest.raises(UserError, match="`--tasks` must be some of cola, rte"):
        plot(run, "--tasks", "mnli")


def test_a_benchmark_without_experts_refuses_unknown_names_and_says_that_there_are_none(tmp_path):
    run = write_benchmark(tmp_path / "run", sparse=False)
    for option, name, rule in (("--tasks", "mnli", "some of cola, rte"), ("--layers", "encoder.layers.0", "left out")):
        with pytest.raises(UserError, match=f"`{option}` must be {rule}.*, but is '{name}'"):
            plot(run, option, name)
    assert not (run / "plots").exists()
    assert "experts: not drawn, because ca_mtl has no experts\n" in plot(run, "--tasks", "rte").output


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


def test_uncertainty_sampling_and_task_embeddings_have_pictures(tmp_path):
    run = write_benchmark(tmp_path / "run", checkpoint=False)
    candidates = {"temperature": None, "probabilities": {"cola": 0.5, "rte": 0.5}, "of_candidates": True}
    RunLog(run / FILE_NAME).write("sampling", epoch=1, **candidates)  # takes the one before back
    for update in (10, 20):
        counts = {"cola": update, "rte": 32 - update}
        RunLog(run / FILE_NAME).write("selection", update=update, updates=10, candidates={"cola": 32, "rte": 32},
                                      trained=counts, relative_entropy={"cola": 0.9, "rte": None}, share_of_data=0.3,
                                      distinct=counts)  # fmt: skip
    table = torch.randn(2, 8)
    state = {"cfg": {"model": {"task_names": "cola,rte"}}, "model": {"encoder.task_embeddings.weight": table}}
    torch.save(state, run / "checkpoint_last.pt")
    assert task_embeddings(states_of(run)["run"])[0] == ["cola", "rte"]
    why = "because uncertainty sampling draws candidates of all tasks alike; selection is what it trains on"
    names = ("experts", "metrics", "selection", "embeddings")
    expected = [f"sampling: not drawn, {why}", *(f"{name}: {run}/plots/{name}.png" for name in names)]
    assert plot(run).output.splitlines() == expected


def test_what_is_borrowed_has_a_picture(tmp_path):
    run = write_benchmark(tmp_path / "run", checkpoint=False)
    log = RunLog(run / FILE_NAME)
    for update, weights in ((10, [0.5, 0.5]), (20, [0.75, 0.25])):
        log.write("sources", epoch=1, update=update, subset="valid", target="rte", sources=["mnli", "qnli"],
                  layers={"encoder.layers.0": weights, "decoder.layers.0": [math.nan, math.nan]})  # fmt: skip
    rows = {(row.task, row.layer): row.value.tolist() for row in read_runs([run])[0].of("sources")}
    assert rows["mnli", "encoder.layers.0"] == rows["mnli", ""] == [0.75] and rows["qnli", ""] == [0.25]
    assert f"sources: {run}/plots/sources.png" in plot(run).output.splitlines()
    log.write("sources", update=30, subset="valid", sources=["mnli"], layers={"encoder.layers.0": [0.5, 0.5]})
    with pytest.raises(UserError, match="a weight for each of the 1 sources"):
        plot(run)


def test_how_far_gates_moved_has_a_picture_with_a_line_for_each_layer(tmp_path):
    run = write_benchmark(tmp_path / "run", checkpoint=False)
    log = RunLog(run / FILE_NAME)
    for update in (10, 20):
        figures = {"blend": 0.01 * update, "moved": None, "changed": 0.5}
        log.write("gates", update=update, subset="valid", since=0, layers={"a": figures, "b": {"changed": 0.1}})
    assert f"gate_movement: {run}/plots/gate_movement.png" in plot(run).output.splitlines()
    drawn = read_runs([run])[0].of("gates")
    assert [(row.metric, row.layer, row.value.tolist()) for row in drawn] == [
        ("blend", "a", [0.1, 0.2]), ("changed", "a", [0.5, 0.5]), ("changed", "b", [0.1, 0.1]),
    ]  # fmt: skip
