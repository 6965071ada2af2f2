"""Language understanding through the real commands: mixtures, metrics, resuming, and stages."""

import json

import pytest
import torch

from tests.helpers.benchmark import TASKS, logged, make_related_task, train_tasks, validate, validated
from tests.helpers.commands import run


@pytest.mark.slow
def test_it_learns_a_mixture_of_all_kinds(figures):
    for name in ("cola_matthews", "stsb_spearman", "copa_accuracy", "wic_accuracy", "small", "all"):
        assert figures[name] >= 90, (name, figures)
    mean = sum(figures[name] for name in ("cola_matthews", "stsb_spearman", "copa_accuracy", "wic_accuracy")) / 4
    assert figures["all"] == pytest.approx(mean, abs=0.01)


def scores_in(folder):
    return json.loads((folder / "scores.json").read_text())


@pytest.mark.slow
def test_a_validation_prints_and_writes_the_scores_of_its_line(benchmark_data, mixture, figures, tmp_path):
    """In two processes one writes, and replaces its own scores."""
    for processes in (1, 2):
        options = ("--results-path", tmp_path / "scores", "--distributed-world-size", processes)
        output = validate(benchmark_data, mixture / "checkpoint_best.pt", *options)
        assert validated(output) == figures
        assert output.stdout.count("Small") == 1 and output.stdout.count("scores.json") == 1
        written = scores_in(tmp_path / "scores")
        assert list(written["tasks"]) == TASKS.split(",")
        for name, task in written["tasks"].items():
            assert task["score"] == pytest.approx(figures[f"{name}_{task['metric']}"], abs=0.01)
            assert task["examples"] == 60 and 0 <= task["standard_error"] < 10
            (found,) = task["sets"].values()
            assert found["majority"].keys() == {task["metric"], *found["also"]} and found["constant"] == ""
            assert found["majority"][task["metric"]] < task["score"]
        for name in ("small", "all"):
            assert written["averages"][name]["score"] == pytest.approx(figures[name], abs=0.02)
        settings = written["settings"]
        assert (settings["model"], settings["seed"], settings["trained_tasks"]) == ("mt_tag", 1, TASKS.split(","))
        assert settings["encoder"] == {"layers": 2, "width": 16} and 0 < settings["updates"] <= 300
        cell = f"{written['averages']['all']['score']:.2f} ±"
        assert cell in output.stdout and cell in (tmp_path / "scores" / "scores.md").read_text()
    arguments = ("--path", mixture / "checkpoint_best.pt", "--out", tmp_path / "evaluated", "--cpu")
    assert cell in run("mtmoe", "evaluate", benchmark_data, *arguments).stdout
    assert scores_in(tmp_path / "evaluated")["tasks"] == written["tasks"]


@pytest.mark.slow
def test_the_log_has_the_loss_of_every_task(mixture):
    """In an epoch each has a quarter of the examples, so that their mean is the loss that is trained on."""
    figures = logged((mixture / "log.txt").read_text(), "train_wall")
    losses = [figures[f"{task}_loss"] for task in TASKS.split(",")]
    assert sum(losses) / 4 == pytest.approx(figures["loss"], abs=2e-3) and len(set(losses)) == 4


@pytest.mark.slow
def test_the_run_log_has_every_task(mixture):
    events = [json.loads(line) for line in (mixture / "mtmoe.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "valid"][-1]
    assert set(last["tasks"]) == set(TASKS.split(","))
    assert events[0]["event"] == "run" and events[0]["seed"] == 1
    assert last["groups"]["all"]["mean"] >= 90
    experts = [event for event in events if event["event"] == "experts"][-1]
    assert experts["task_names"] == TASKS.split(",") and len(experts["layers"]) == 2


@pytest.mark.slow
def test_resuming_changes_no_bit(benchmark_data, tmp_path):
    """Also the sampling, which the run that goes on changes."""
    options = ("--init-encoder", benchmark_data / "encoder.pt", "--dropout", 0.1, "--virtual-epoch-size", 160,
               "--sampling-method", "uniform-then-natural", "--natural-from-epoch", 2, "--train-share", "cola=0.2",
               "--disable-validation", "--save-interval-updates", 7)  # fmt: skip
    train_tasks(benchmark_data, tmp_path / "whole", *options, "--max-update", 21)
    for updates in (7, 21):
        train_tasks(benchmark_data, tmp_path / "parts", *options, "--max-update", updates)
    whole, parts = (torch.load(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("whole", "parts"))
    assert [key for key in whole if not torch.equal(whole[key], parts[key])] == []
    events = [json.loads(line) for line in (tmp_path / "parts" / "mtmoe.jsonl").read_text().splitlines()]
    shares = {event["epoch"]: event["probabilities"]["cola"] for event in events if event["event"] == "sampling"}
    assert shares == {1: 0.25, 2: pytest.approx(60 / 960), 3: pytest.approx(60 / 960)}


@pytest.mark.slow
def test_a_new_task_begins_with_a_related_ones_gate(benchmark_data, mixture, tmp_path):
    """From the mixture's checkpoint alone, which has the encoder and the tokenizer; of few examples."""
    train_tasks(
        benchmark_data, tmp_path, "--glue-tasks", "rte", "--finetune-from-model", mixture / "checkpoint_best.pt",
        "--reuse-gate", "wic", "--max-update", 1, "--lr", 0, "--train-share", "rte=0.1",
    )  # fmt: skip
    begun = json.loads((tmp_path / "mtmoe.jsonl").read_text().splitlines()[0])
    assert (begun["sizes"], begun["train_shares"], begun["train_share_seed"]) == ({"rte": 30}, {"rte": 0.1}, 1)
    new = torch.load(tmp_path / "checkpoint_last.pt")["model"]
    old = torch.load(mixture / "checkpoint_best.pt")["model"]
    gates = [key for key in new if key.endswith("gate.weight")]
    assert len(gates) == 2
    for key in gates:
        assert torch.equal(new[key], old[key][TASKS.split(",").index("wic")].unsqueeze(0))
    assert {key for key in new if key.startswith("heads.")} == {"heads.rte.weight", "heads.rte.bias"}
    assert torch.equal(new["encoder.layers.0.moe.experts.fc1_weight"], old["encoder.layers.0.moe.experts.fc1_weight"])


@pytest.mark.rare
def test_two_stages_learn_from_few_examples_what_single_task_cannot(benchmark_data, mixture, tmp_path):
    """Sixteen examples that begin with some of the letters; what the others say is known from the mixture."""
    table = make_related_task(benchmark_data, train=16, dev=60)
    options = ("--task-table", table, "--glue-tasks", "mine", "--max-update", 60, "--lr", 0.001)
    begins = {
        "single": ("--arch", "mt_dense", "--init-encoder", benchmark_data / "encoder.pt", "--max-update", 300),
        "two stages": ("--finetune-from-model", mixture / "checkpoint_best.pt", "--reuse-gate", "cola"),
    }
    found, losses = {}, {}
    for name, begin in begins.items():
        output = train_tasks(benchmark_data, tmp_path / name, *options, *begin)
        losses[name] = logged(output, "train_wall")["loss"]
        found[name] = logged(output, "mine_accuracy")["mine_accuracy"]
    assert losses["single"] < 0.05, "it learns its examples"
    assert found["two stages"] >= 95 and found["single"] <= 75, found
