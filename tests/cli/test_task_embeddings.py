"""Embeddings of tasks: CA-MTL's lower half stays, other tasks begin with what a checkpoint knows, and one is added."""

import json

import pytest
import torch

from fairseq_mtmoe.backbones.bert.pretrained import load
from tests.helpers.benchmark import TASKS, save_untrained, task_arguments
from tests.helpers.commands import run
from tests.helpers.training import run_here, train_here

pytestmark = pytest.mark.slow
TABLE = "encoder.task_embeddings.weight"
ADAPTED = ("--arch", "ca_mtl", "--conditional-positions", 24)
WIC, COLA = (TASKS.split(",").index(task) for task in ("wic", "cola"))


def model_of(path):
    return torch.load(path)["model"]


@pytest.fixture(scope="module")
def adapted(benchmark_data, tmp_path_factory):
    """The last checkpoint of a run of 6 updates."""
    folder = tmp_path_factory.mktemp("adapted")
    options = ("--init-encoder", benchmark_data / "encoder.pt", *ADAPTED, "--dropout", 0.1, "--disable-validation")
    run_here(task_arguments(benchmark_data, folder, *options, "--max-update", 6))
    return folder / "checkpoint_last.pt"


def test_the_lower_half_is_the_pretrained_encoders_to_the_bit_and_has_no_optimizer_state(benchmark_data, adapted):
    """But for what is conditional there."""
    checkpoint = torch.load(adapted)
    below = ("encoder.embed_", "encoder.layernorm_embedding.", "encoder.layers.0.")
    state = checkpoint["model"]
    kept = [name for name in state if name.startswith(below) and ".attention_bias." not in name]
    assert len(kept) == 5 + 16
    pretrained = load(benchmark_data / "encoder.pt").state
    assert [name for name in kept if not torch.equal(state[name], pretrained[name.split(".", 1)[1]])] == []
    assert len(checkpoint["last_optimizer_state"]["state"]) == len(state) - len(kept)
    assert state[TABLE].shape == (4, 16) and torch.pdist(state[TABLE]).min() > 1e-4, "tasks part"


def test_other_tasks_begin_with_what_the_checkpoint_knows(benchmark_data, adapted, tmp_path):
    """A task that it has not begins with an embedding of zeros."""
    begun = ("--finetune-from-model", adapted, *ADAPTED, "--max-update", 1, "--lr", 0)
    run_here(task_arguments(benchmark_data, tmp_path, *begun, "--glue-tasks", "wic,rte,cola", "--disable-validation"))
    new, old = model_of(tmp_path / "checkpoint_last.pt"), model_of(adapted)
    assert torch.equal(new[TABLE], torch.stack([old[TABLE][WIC], torch.zeros(16), old[TABLE][COLA]]))
    shared = [name for name in new if not name.startswith("heads.") and name != TABLE]
    assert [name for name in shared if not torch.equal(new[name], old[name])] == []


def test_a_task_alone_goes_on_from_a_related_ones_embedding(benchmark_data, tmp_path):
    """From a checkpoint of CA-MTL whose embeddings differ; without a learning rate, to see what it begins with."""
    save_untrained(benchmark_data, tmp_path / "old.pt", "--arch", "ca_mtl")
    run("mtmoe", "add-task", tmp_path / "old.pt", tmp_path / "new.pt", "--task", "rte", "--embedding-from", "wic")
    options = ("--arch", "ca_mtl", "--glue-tasks", "rte", "--finetune-from-model", tmp_path / "new.pt",
               "--max-update", 1, "--lr", 0, "--train-share", "rte=0.1")  # fmt: skip
    run_here(task_arguments(benchmark_data, tmp_path / "run", *options))
    old, new, begun = (model_of(tmp_path / name) for name in ("old.pt", "new.pt", "run/checkpoint_last.pt"))
    assert torch.equal(begun[TABLE], old[TABLE][WIC].unsqueeze(0))
    assert begun[TABLE].any() and torch.equal(begun["heads.rte.weight"], new["heads.rte.weight"])
    same = {key for key in begun if key in old and key != TABLE}
    assert len(same) == len(begun) - 3 and all(torch.equal(begun[key], old[key]) for key in same)


def test_a_pair_joins_the_others_of_a_translation_run(digits, tmp_path):
    """With the optimizer's moments; it is translated at last."""
    options = ("--task-ids", "pair", "--conditional", "attention,norm", "--langs", "aa,bb,cc,en", "--max-epoch", 50)
    two = ("--lang-pairs", "en-aa,en-bb")
    train_here(digits, tmp_path / "run", *options, *two, "--max-update", 4)
    last, new = tmp_path / "run" / "checkpoint_last.pt", tmp_path / "new.pt"
    said = run("mtmoe", "add-task", last, new, "--task", "en-cc", "--embedding-from", "en-aa").stdout
    assert said == f"{new}: tasks en-aa, en-bb and en-cc, with the optimizer's moments\n"
    before, after = model_of(last)[TABLE], model_of(new)[TABLE]
    assert before.any() and torch.equal(after, before[[0, 1, 0]])
    train_here(digits, tmp_path / "more", *options, "--restore-file", new, "--max-update", 8)
    state = torch.load(tmp_path / "more" / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 8
    assert len({tuple(row) for row in state["model"][TABLE].tolist()}) == 3
    scores = tmp_path / "scores"
    checkpoint = tmp_path / "more" / "checkpoint_last.pt"
    run("mtmoe", "evaluate", digits, "--path", checkpoint, "--out", scores, "--cpu", "--beam", 2, "--max-len-b", 5)
    assert set(json.loads((scores / "scores.json").read_text())["pairs"]) == {"en-aa", "en-bb", "en-cc"}
