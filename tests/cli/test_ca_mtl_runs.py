"""CA-MTL through the real commands: it learns, what is frozen stays, a run goes on, other tasks begin with it."""

import pytest
import torch

from fairseq_mtmoe.backbones.bert.encoder_file import load
from tests.helpers.benchmark import TASKS, train_tasks, validate, validated

ADAPTED = ("--arch", "ca_mtl", "--conditional-positions", 24)


@pytest.fixture(scope="module")
def adapted(benchmark_data, tmp_path_factory):
    """The folder of a run that was ended after 40 updates and went on."""
    folder = tmp_path_factory.mktemp("adapted")
    options = ("--init-encoder", benchmark_data / "encoder.pt", *ADAPTED, "--disable-validation")
    for updates in (40, 300):
        train_tasks(benchmark_data, folder, *options, "--max-update", updates)
    return folder


def model_of(folder):
    return torch.load(folder / "checkpoint_last.pt")["model"]


def frozen(state):
    """Of the lower half, without what is conditional there."""
    below = ("encoder.embed_", "encoder.layernorm_embedding.", "encoder.layers.0.")
    return {name: value for name, value in state.items() if name.startswith(below) and ".attention_bias." not in name}


@pytest.mark.slow
def test_it_learns_a_mixture_of_all_kinds(benchmark_data, adapted):
    figures = validated(validate(benchmark_data, adapted / "checkpoint_last.pt"))
    for name in ("cola_matthews", "stsb_spearman", "copa_accuracy", "wic_accuracy"):
        assert figures[name] >= 85, (name, figures)


@pytest.mark.slow
def test_the_lower_half_is_the_pretrained_encoders_to_the_bit_and_has_no_optimizer_state(benchmark_data, adapted):
    checkpoint = torch.load(adapted / "checkpoint_last.pt")
    kept = frozen(checkpoint["model"])
    assert len(kept) == 5 + 16
    pretrained = load(benchmark_data / "encoder.pt").state
    assert [name for name, value in kept.items() if not torch.equal(value, pretrained[name.split(".", 1)[1]])] == []
    assert len(checkpoint["last_optimizer_state"]["state"]) == len(checkpoint["model"]) - len(kept)
    table = checkpoint["model"]["encoder.task_embeddings.weight"]
    assert table.shape == (4, 16) and torch.pdist(table).min() > 0.01, "tasks part"


@pytest.mark.slow
def test_resuming_changes_no_bit(benchmark_data, tmp_path):
    options = ("--init-encoder", benchmark_data / "encoder.pt", *ADAPTED, "--dropout", 0.1, "--disable-validation")
    for name, updates in (("whole", 8), ("parts", 4), ("parts", 8)):
        train_tasks(benchmark_data, tmp_path / name, *options, "--max-update", updates)
    whole, parts = model_of(tmp_path / "whole"), model_of(tmp_path / "parts")
    assert [name for name in whole if not torch.equal(whole[name], parts[name])] == []


@pytest.mark.slow
def test_other_tasks_begin_with_what_the_checkpoint_knows(benchmark_data, adapted, tmp_path):
    """A task that it has not begins with an embedding of zeros."""
    begun = ("--finetune-from-model", adapted / "checkpoint_last.pt", *ADAPTED, "--max-update", 1, "--lr", 0)
    train_tasks(benchmark_data, tmp_path, *begun, "--glue-tasks", "wic,rte,cola", "--disable-validation")
    new, old = model_of(tmp_path), model_of(adapted)
    table, known = (state["encoder.task_embeddings.weight"] for state in (new, old))
    wic, cola = (known[TASKS.split(",").index(task)] for task in ("wic", "cola"))
    assert torch.equal(table, torch.stack([wic, torch.zeros(16), cola]))
    shared = [name for name in new if not name.startswith("heads.") and "task_embeddings.weight" not in name]
    assert [name for name in shared if not torch.equal(new[name], old[name])] == []
