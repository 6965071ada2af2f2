"""PEMT on an encoder through the real commands: sources of other heads, a target that goes on without their files."""

import json
import shutil

import pytest
import torch

from fairseq_mtmoe.models.pemt.config import is_added, is_trainable
from fairseq_mtmoe.models.pemt.sources import load
from tests.helpers.benchmark import (
    logged,
    make_benchmark,
    make_encoder,
    make_unlabelled,
    task_arguments,
    train_tasks,
)
from tests.helpers.commands import run
from tests.helpers.pemt import adapters_of

pytestmark = pytest.mark.slow
BORROWING = ("--arch", "pemt_bert", "--adapter-rank", 4, "--criterion", "pemt", "--dropout", 0.1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A made benchmark and an encoder."""
    folder = tmp_path_factory.mktemp("pemt-encoder")
    make_benchmark(folder, {"train": 40, "dev": 12})
    make_encoder(folder / "encoder.pt")
    return folder


@pytest.fixture(scope="module")
def sources(data, tmp_path_factory):
    """The folder of two sources' runs: one reads words beside [CLS], one values."""
    folder = tmp_path_factory.mktemp("sources")
    options = (*BORROWING, "--init-encoder", data / "encoder.pt", "--pemt-stage", "source", "--max-update", 4)
    for name in ("wic", "stsb"):
        train_tasks(data, folder / name, "--glue-tasks", name, *options)
    return folder


def borrowing(data, sources):
    """The options of a target that borrows from runs in a folder."""
    files = ",".join(str(sources / name / f"{name}.pt") for name in ("wic", "stsb"))
    return ("--glue-tasks", "copa", *BORROWING, "--init-encoder", data / "encoder.pt", "--pemt-sources", files)


@pytest.fixture(scope="module")
def target(data, sources, tmp_path_factory):
    """The folder of a target's run that ended after 3 updates and went on, its sources neither there nor named."""
    folder = tmp_path_factory.mktemp("target")
    shutil.copytree(sources, folder / "sources")
    options = borrowing(data, folder / "sources")
    train_tasks(data, folder, *options, "--max-update", 3)
    shutil.rmtree(folder / "sources")
    (folder / "log.txt").write_text(train_tasks(data, folder, *options[:-2], "--max-update", 6))
    return folder


def test_resuming_without_sources_changes_no_bit(data, sources, target, tmp_path):
    train_tasks(data, tmp_path, *borrowing(data, sources), "--max-update", 6)
    whole, parts = (torch.load(folder / "checkpoint_last.pt") for folder in (tmp_path, target))
    assert [name for name, value in whole["model"].items() if not torch.equal(value, parts["model"][name])] == []
    assert parts["cfg"]["model"]["pemt_sources"] and parts["cfg"]["model"]["pemt"] == whole["cfg"]["model"]["pemt"]


def test_what_trains_is_the_task_s_own_and_all_else_stays(data, sources, target):
    checkpoint = torch.load(target / "checkpoint_last.pt")
    state, begun = checkpoint["model"], torch.load(data / "encoder.pt")["model"]
    trained = {name for name in state if is_trainable(name, "target")}
    kept = {name for name in state if not is_added(name) and name not in trained}
    assert [name for name in kept if not torch.equal(state[name], begun[name.removeprefix("encoder.")])] == []
    assert len(checkpoint["last_optimizer_state"]["state"]) == len(trained)
    for index, name in enumerate(("wic", "stsb")):
        source = load(sources / name / f"{name}.pt")
        assert adapters_of(source) and all(
            torch.equal(state[key][index], one) for key, one in adapters_of(source).items()
        )
        assert not any(key.startswith("heads") for key in source.tensors)


def test_the_logs_have_both_losses_and_the_weights_of_sources(target):
    figures = logged((target / "log.txt").read_text(), "sparsity_loss")
    assert figures["loss"] > 0 and -0.5 <= figures["sparsity_loss"] <= 0.5
    events = [json.loads(line) for line in (target / "mtmoe.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "sources"][-1]
    assert (last["target"], last["sources"]) == ("copa", ["wic", "stsb"]) and len(last["layers"]) == 2


def test_merged_it_has_the_same_predictions(data, target, tmp_path):
    make_unlabelled(data)
    path = target / "checkpoint_last.pt"
    run("mtmoe", "merge", path, tmp_path / "merged.pt")
    written = []
    for name, one in (("whole", path), ("merged", tmp_path / "merged.pt")):
        run("mtmoe", "predict", data, "--path", one, "--batch-size", 16, "--cpu", "--out", tmp_path / name)
        written.append((tmp_path / name / "COPA.jsonl").read_text())
    assert written[0] == written[1] and len(written[0].splitlines()) == 12


def test_several_tasks_are_refused_and_so_are_options_of_words(data, tmp_path):
    options = (*BORROWING, "--init-encoder", data / "encoder.pt", "--pemt-stage", "source", "--max-update", 1)
    for more, sentence in (
        (("--glue-tasks", "wic,stsb"), "`--glue-tasks` must be a single task for a model that borrows from others"),
        (("--glue-tasks", "wic", "--label-smoothing", 0.1), "`--label-smoothing` must be left out with a task that"),
    ):
        refused = run("fairseq-train", *task_arguments(data, tmp_path / "run", *options, *more), check=False)
        assert refused.returncode == 1 and sentence in refused.stderr
    assert not list(tmp_path.glob("run/*.pt"))
