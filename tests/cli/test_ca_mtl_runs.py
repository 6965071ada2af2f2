"""CA-MTL through the real commands: what is frozen stays, a run goes on, other tasks begin with it."""

import pytest
import torch

from fairseq_mtmoe.backbones.bert.pretrained import load
from tests.helpers.benchmark import TASKS, train_tasks

ADAPTED = ("--arch", "ca_mtl", "--conditional-positions", 24)
FROM_AN_ENCODER = (*ADAPTED, "--dropout", 0.1, "--disable-validation")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def adapted(benchmark_data, tmp_path_factory):
    """The folder of a run that was ended after 6 updates and went on."""
    folder = tmp_path_factory.mktemp("adapted")
    for updates in (6, 12):
        begin = ("--init-encoder", benchmark_data / "encoder.pt")
        train_tasks(benchmark_data, folder, *begin, *FROM_AN_ENCODER, "--max-update", updates)
    return folder


def model_of(folder):
    return torch.load(folder / "checkpoint_last.pt")["model"]


def frozen(state):
    """Of the lower half, without what is conditional there."""
    below = ("encoder.embed_", "encoder.layernorm_embedding.", "encoder.layers.0.")
    return {name: value for name, value in state.items() if name.startswith(below) and ".attention_bias." not in name}


def test_the_lower_half_is_the_pretrained_encoders_to_the_bit_and_has_no_optimizer_state(benchmark_data, adapted):
    checkpoint = torch.load(adapted / "checkpoint_last.pt")
    kept = frozen(checkpoint["model"])
    assert len(kept) == 5 + 16
    pretrained = load(benchmark_data / "encoder.pt").state
    assert [name for name, value in kept.items() if not torch.equal(value, pretrained[name.split(".", 1)[1]])] == []
    assert len(checkpoint["last_optimizer_state"]["state"]) == len(checkpoint["model"]) - len(kept)
    table = checkpoint["model"]["encoder.task_embeddings.weight"]
    assert table.shape == (4, 16) and torch.pdist(table).min() > 1e-4, "tasks part"


def test_resuming_changes_no_bit(benchmark_data, adapted, tmp_path):
    begin = ("--init-encoder", benchmark_data / "encoder.pt")
    train_tasks(benchmark_data, tmp_path, *begin, *FROM_AN_ENCODER, "--max-update", 12)
    whole, parts = model_of(tmp_path), model_of(adapted)
    assert [name for name in whole if not torch.equal(whole[name], parts[name])] == []


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
