"""A task that is added to a checkpoint, and what runs make of it, through the real commands."""

import json

import pytest
import torch

from tests.helpers.benchmark import TASKS, save_untrained, train_tasks
from tests.helpers.commands import run, train

TABLE = "encoder.task_embeddings.weight"


@pytest.mark.slow
def test_a_task_alone_goes_on_from_a_related_ones_embedding(benchmark_data, tmp_path):
    """From a checkpoint of CA-MTL whose embeddings differ; without a learning rate, to see what it begins with."""
    save_untrained(benchmark_data, tmp_path / "old.pt", "--arch", "ca_mtl")
    run("mtmoe", "add-task", tmp_path / "old.pt", tmp_path / "new.pt", "--task", "rte", "--embedding-from", "wic")
    run_ = tmp_path / "run"
    train_tasks(
        benchmark_data, run_, "--arch", "ca_mtl", "--glue-tasks", "rte", "--finetune-from-model", tmp_path / "new.pt",
        "--max-update", 1, "--lr", 0, "--train-share", "rte=0.1",
    )  # fmt: skip
    old, new, begun = (
        torch.load(path)["model"] for path in (tmp_path / "old.pt", tmp_path / "new.pt", run_ / "checkpoint_last.pt")
    )
    assert torch.equal(begun[TABLE], old[TABLE][TASKS.split(",").index("wic")].unsqueeze(0))
    assert begun[TABLE].any() and torch.equal(begun["heads.rte.weight"], new["heads.rte.weight"])
    same = {key for key in begun if key in old and key != TABLE}
    assert len(same) == len(begun) - 3 and all(torch.equal(begun[key], old[key]) for key in same)


@pytest.mark.slow
def test_a_pair_joins_the_others_of_a_translation_run(digits, tmp_path):
    """With the optimizer's moments; it is translated at last."""
    options = ("--task-ids", "pair", "--conditional", "attention,norm", "--langs", "aa,bb,cc,en", "--max-epoch", 50)
    two = ("--lang-pairs", "en-aa,en-bb")
    train(digits, tmp_path / "run", *options, *two, "--max-update", 4)
    last, new = tmp_path / "run" / "checkpoint_last.pt", tmp_path / "new.pt"
    said = run("mtmoe", "add-task", last, new, "--task", "en-cc", "--embedding-from", "en-aa").stdout
    assert said == f"{new}: tasks en-aa, en-bb and en-cc, with the optimizer's moments\n"
    before, after = torch.load(last)["model"][TABLE], torch.load(new)["model"][TABLE]
    assert before.any() and torch.equal(after, before[[0, 1, 0]])
    train(digits, tmp_path / "more", *options, "--restore-file", new, "--max-update", 8)
    state = torch.load(tmp_path / "more" / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 8
    assert len({tuple(row) for row in state["model"][TABLE].tolist()}) == 3
    scores = tmp_path / "scores"
    checkpoint = tmp_path / "more" / "checkpoint_last.pt"
    run("mtmoe", "evaluate", digits, "--path", checkpoint, "--out", scores, "--cpu", "--beam", 2, "--max-len-b", 5)
    assert set(json.loads((scores / "scores.json").read_text())["pairs"]) == {"en-aa", "en-bb", "en-cc"}
