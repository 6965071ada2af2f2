"""PEMT through the real commands: sources leave files, a target borrows from them, goes on, and writes without them."""

import shutil

import pytest
import torch

from fairseq_mtmoe.backbones.t5 import pretrained as model_file
from fairseq_mtmoe.backbones.t5.model import whole_state
from fairseq_mtmoe.models.pemt.config import is_added, is_trainable
from fairseq_mtmoe.models.pemt.sources import load
from tests.helpers.benchmark import logged, make_benchmark
from tests.helpers.commands import PLUGIN, run
from tests.helpers.pemt import adapters_of
from tests.helpers.text_to_text import make_t5, text_arguments, train_text

pytestmark = pytest.mark.slow
BORROWING = ("--arch", "pemt_t5", "--adapter-rank", 4, "--criterion", "pemt", "--dropout", 0.1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A made benchmark and a T5."""
    folder = tmp_path_factory.mktemp("pemt")
    make_benchmark(folder, {"train": 40, "dev": 12})
    make_t5(folder / "t5.pt")
    return folder


@pytest.fixture(scope="module")
def sources(data, tmp_path_factory):
    """The folder of two sources' runs: one with validation, and one without."""
    folder = tmp_path_factory.mktemp("sources")
    options = (*BORROWING, "--init-model", data / "t5.pt", "--pemt-stage", "source")
    (folder / "log.txt").write_text(
        train_text(data, folder / "rte", "--source-task", "rte", *options, "--max-epoch", 3)
    )
    train_text(data, folder / "cola", "--source-task", "cola", *options, "--max-update", 5, "--disable-validation")
    return folder


def borrowing(data, folder, *names):
    """The options of a target that borrows from runs in a folder."""
    files = ",".join(str(folder / name / f"{name}.pt") for name in names)
    return ("--target-task", "stsb", *BORROWING, "--init-model", data / "t5.pt", "--pemt-sources", files)


@pytest.fixture(scope="module")
def target(data, sources, tmp_path_factory):
    """The folder of a target's run that was ended after 3 updates and went on, when its sources were gone."""
    folder = tmp_path_factory.mktemp("target")
    shutil.copytree(sources, folder / "sources")
    options = borrowing(data, folder / "sources", "rte", "cola")
    train_text(data, folder, *options, "--max-update", 3)
    shutil.rmtree(folder / "sources")
    (folder / "log.txt").write_text(train_text(data, folder, *options, "--max-update", 6))
    return folder


def state_of(path):
    return torch.load(path)["model"]


@pytest.mark.parametrize(("name", "checkpoint"), [("rte", "checkpoint_best.pt"), ("cola", "checkpoint_last.pt")])
def test_a_source_s_file_is_of_the_best_checkpoint_or_of_the_last(data, sources, name, checkpoint):
    source, state = load(sources / name / f"{name}.pt"), state_of(sources / name / checkpoint)
    assert source.task == name and source.made.rank == 4
    assert torch.equal(source.tensors["prompt"], state["encoder.prompt.weight"])
    for key, value in adapters_of(source).items():
        assert torch.equal(value, state[key][0]) and value.abs().max() > 0
    assert (sources / name / f"{name}.pt").stat().st_size < (data / "t5.pt").stat().st_size / 5


def test_what_is_frozen_stays_bit_for_bit_and_has_no_optimizer_state(data, sources, target):
    checkpoint = torch.load(target / "checkpoint_last.pt")
    state = checkpoint["model"]
    t5 = model_file.load(data / "t5.pt")
    kept = {name: value for name, value in whole_state(t5.state, t5.config).items() if "norm" not in name}
    assert [name for name, value in kept.items() if not torch.equal(value, state[name])] == []
    for index, name in enumerate(("rte", "cola")):
        source = load(sources / name / f"{name}.pt")
        for key, value in adapters_of(source).items():
            assert torch.equal(state[key][index], value)
        assert torch.equal(
            state["encoder.prompt.sources"][index][: len(source.tensors["prompt"])], source.tensors["prompt"]
        )
    trained = [name for name in state if is_trainable(name, "target")]
    moved = [name for name in trained if is_added(name) or not torch.equal(state[name], t5.state[name])]
    assert moved == trained
    assert len(checkpoint["last_optimizer_state"]["state"]) == len(trained)
    assert checkpoint["cfg"]["model"]["pemt"]


def test_the_log_has_both_losses(target):
    log = (target / "log.txt").read_text()
    figures = logged(log, "sparsity_loss")
    assert figures["nll_loss"] == figures["loss"] > 0 and -0.5 <= figures["sparsity_loss"] <= 0.5


def test_the_log_names_the_file_that_is_left_and_those_that_are_borrowed(sources, target):
    path = sources / "rte" / "rte.pt"
    assert f"wrote {path} ({path.stat().st_size / 1e3:,.0f} kB)" in (sources / "log.txt").read_text()
    assert "stsb borrows from rte (in its checkpoint), cola (in its checkpoint)" in (target / "log.txt").read_text()


def test_resuming_changes_no_bit(data, sources, target, tmp_path):
    train_text(data, tmp_path, *borrowing(data, sources, "rte", "cola"), "--max-update", 6)
    whole, parts = state_of(tmp_path / "checkpoint_last.pt"), state_of(target / "checkpoint_last.pt")
    assert whole.keys() == parts.keys()
    assert [name for name in whole if not torch.equal(whole[name], parts[name])] == []


def test_it_writes_without_its_sources(data, target):
    written = run(
        "fairseq-generate", data, *PLUGIN, "--task", "text_to_text", "--target-task", "stsb", "--gen-subset", "valid",
        "--path", target / "checkpoint_last.pt", "--beam", 3, "--max-len-b", 4, "--batch-size", 8, "--cpu",
        "--no-progress-bar", "--num-workers", 0,
    )  # fmt: skip
    assert sum(line.startswith("H-") for line in written.stdout.splitlines()) == 12, written.stdout[-2000:]


def test_a_source_of_another_t5_is_refused_before_anything_is_written(data, sources, tmp_path):
    make_t5(tmp_path / "other.pt", seed=2)
    options = (*borrowing(data, sources, "rte"), "--init-model", tmp_path / "other.pt")
    result = run("fairseq-train", *text_arguments(data, tmp_path / "run", *options), check=False)
    assert result.returncode != 0 and "Traceback" not in result.stderr
    assert "rte.pt` must be of a source that was trained on the weights that this run begins with" in result.stderr
    assert not list((tmp_path / "run").glob("*.pt"))
