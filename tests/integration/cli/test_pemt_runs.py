"""Runs of PEMT on a T5 and on an encoder: sources leave files, a target borrows from them and goes on without them."""

import shutil
from types import SimpleNamespace

import pytest
import torch

from fairseq_mtmoe.nlu.t5 import pretrained as model_file
from fairseq_mtmoe.nlu.t5.model import whole_state
from fairseq_mtmoe.pemt.config import is_added, is_trainable
from fairseq_mtmoe.pemt.sources import load
from fairseq_mtmoe.report.run_log import read
from tests.helpers.benchmark import logged, make_unlabelled, task_arguments
from tests.helpers.commands import run
from tests.helpers.invoked import mtmoe
from tests.helpers.pemt import adapters_of
from tests.helpers.refused import refused
from tests.helpers.text_to_text import text_arguments
from tests.helpers.training import run_here

# Of the encoder's sources one reads words beside [CLS], one values; of the T5's one is trained without a validation.
T5 = SimpleNamespace(
    arguments=text_arguments, arch="pemt_t5", init="--init-model", file="t5.pt", source="--source-task",
    sources=("rte", "cola"), target=("--target-task", "stsb"),
)  # fmt: skip
BERT = SimpleNamespace(
    arguments=task_arguments, arch="pemt_bert", init="--init-encoder", file="encoder.pt", source="--glue-tasks",
    sources=("wic", "stsb"), target=("--glue-tasks", "copa"),
)  # fmt: skip
KINDS = [pytest.param(T5, id="t5"), pytest.param(BERT, id="bert", marks=pytest.mark.scheduled)]
of_both = pytest.mark.parametrize("kind", KINDS, indirect=True)


@pytest.fixture(scope="module")
def kind(request, benchmark, tmp_path_factory):
    """One of the backbones, its sources trained, in the folder `trained`."""
    found = SimpleNamespace(**vars(request.param), trained=tmp_path_factory.mktemp("sources"))

    def source(name, *more):
        options = (found.source, name, *begun(found, benchmark), "--pemt-stage", "source", *more)
        return found.arguments(benchmark, found.trained / name, *options)

    run_here(source(found.sources[0], "--max-epoch", 3))
    run_here(source(found.sources[1], "--max-update", 5, "--disable-validation"))
    return found


def begun(kind, benchmark):
    options = ("--arch", kind.arch, "--adapter-rank", 4, "--criterion", "pemt", "--dropout", 0.1)
    return (*options, kind.init, benchmark / kind.file)


def borrowing(kind, benchmark, folder):
    files = ",".join(str(folder / name / f"{name}.pt") for name in kind.sources)
    return (*kind.target, *begun(kind, benchmark), "--pemt-sources", files)


@pytest.fixture(scope="module")
def target(kind, benchmark, tmp_path_factory):
    """The folder of a target's run that ended after 3 updates and went on; its sources were gone, or not even named."""
    folder = tmp_path_factory.mktemp("target")
    shutil.copytree(kind.trained, folder / "sources")
    options = borrowing(kind, benchmark, folder / "sources")
    run("fairseq-train", *kind.arguments(benchmark, folder, *options, "--max-update", 3))
    shutil.rmtree(folder / "sources")
    options = options if kind.arch == "pemt_t5" else options[:-2]
    said = run("fairseq-train", *kind.arguments(benchmark, folder, *options, "--max-update", 6))
    (folder / "log.txt").write_text(said.stdout + said.stderr)
    return folder


@of_both
def test_resuming_without_sources_changes_no_bit_and_what_trains_is_the_task_s_own(kind, benchmark, target, tmp_path):
    run_here(kind.arguments(benchmark, tmp_path, *borrowing(kind, benchmark, kind.trained), "--max-update", 6))
    whole, parts = (torch.load(folder / "checkpoint_last.pt") for folder in (tmp_path, target))
    assert whole["model"].keys() == parts["model"].keys()
    assert [name for name, value in whole["model"].items() if not torch.equal(value, parts["model"][name])] == []
    assert parts["cfg"]["model"]["pemt_sources"] and parts["cfg"]["model"]["pemt"] == whole["cfg"]["model"]["pemt"]
    state, path = parts["model"], benchmark / kind.file
    if kind.arch == "pemt_t5":
        pretrained = model_file.load(path)
        before = whole_state(pretrained.state, pretrained.config)
    else:
        before = {f"encoder.{name}": value for name, value in torch.load(path)["model"].items()}
    trained = {name for name in state if is_trainable(name, "target")}
    kept = {name for name in state if not is_added(name) and name not in trained}
    assert len(kept) > 20 and [name for name in kept if not torch.equal(state[name], before[name])] == []
    assert [name for name in trained & before.keys() if torch.equal(state[name], before[name])] == []
    assert len(parts["last_optimizer_state"]["state"]) == len(trained)
    for index, name in enumerate(kind.sources):
        source = load(kind.trained / name / f"{name}.pt")
        assert adapters_of(source)
        assert all(torch.equal(state[key][index], value) for key, value in adapters_of(source).items())
        prompt = source.tensors["prompt"]
        assert torch.equal(state["encoder.prompt.sources"][index][: len(prompt)], prompt)
        assert not any(key.startswith("heads") for key in source.tensors)


@of_both
def test_the_logs_have_both_losses_and_the_weights_and_files_of_sources(kind, target):
    log, (first, second) = (target / "log.txt").read_text(), kind.sources
    assert -0.5 <= logged(log, "sparsity_loss")["sparsity_loss"] <= 0.5
    last = [event for event in read(target) if event["event"] == "sources"][-1]
    assert (last["target"], last["sources"]) == (kind.target[1], [first, second]) and len(last["layers"]) >= 2
    assert f"{kind.target[1]} uses the source adapters of {first}, {second}" in log


@of_both
def test_merged_it_has_the_same_predictions(kind, benchmark, target, tmp_path):
    data = shutil.copytree(benchmark, tmp_path / "data")
    make_unlabelled(data)
    path = target / "checkpoint_last.pt"
    mtmoe("merge", path, tmp_path / "merged.pt")
    written = []
    for name, one in (("whole", path), ("merged", tmp_path / "merged.pt")):
        mtmoe("predict", data, "--path", one, "--batch-size", 16, "--cpu", "--out", tmp_path / name)
        written.append(next((tmp_path / name).iterdir()).read_text().splitlines())
    assert written[0] == written[1] and len(written[0]) >= 12


@pytest.mark.parametrize("kind", [T5], ids=["t5"], indirect=True)
def test_a_source_s_file_is_of_the_best_checkpoint_or_of_the_last(kind):
    for name, checkpoint in (("rte", "checkpoint_best.pt"), ("cola", "checkpoint_last.pt")):
        path = kind.trained / name / f"{name}.pt"
        source, state = load(path), torch.load(path.with_name(checkpoint))["model"]
        assert source.task == name and source.made.rank == 4
        assert torch.equal(source.tensors["prompt"], state["encoder.prompt.weight"])
        for key, value in adapters_of(source).items():
            assert torch.equal(value, state[key][0]) and value.abs().max() > 0


def test_several_tasks_are_refused_and_so_are_options_of_words(benchmark, tmp_path):
    for more in (("--glue-tasks", "wic,stsb"), ("--glue-tasks", "wic", "--label-smoothing", 0.1)):
        with refused(more[-2]):
            run_here(task_arguments(benchmark, tmp_path, *begun(BERT, benchmark), "--pemt-stage", "source", *more))
