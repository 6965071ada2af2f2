"""Wrong input to the real commands: one sentence, and nothing changed."""

import os
import shutil

import torch

from tests.golden.runs import FROZEN, RUNS
from tests.helpers.commands import PLUGIN, REPOSITORY, run, train
from tests.helpers.invoked import mtmoe
from tests.helpers.training import train_here


def sentence_of(result) -> str:
    """The error line of a command that must have failed, without a stack trace."""
    assert result.returncode != 0
    assert "Traceback" not in result.stderr, result.stderr[-3000:]
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    return line


def test_wrong_options_also_in_a_configuration_and_data_that_is_not_whole(digits, tmp_path):
    data = shutil.copytree(digits, tmp_path / "data")
    os.truncate(data / "train.en-bb.bb.bin", (data / "train.en-bb.bb.bin").stat().st_size // 2)
    stock = ("--task", "translation", "-s", "en", "-t", "aa", "--arch", "base_moe_tiny", "--expert-gates", "task")
    for given, options, words in ((digits, stock, "each sentence a task id"), (data, (), "train.en-bb.bb")):
        assert words in sentence_of(train(given, tmp_path / "run", *options, check=False))
    result = run(
        "fairseq-hydra-train", "--config-dir", REPOSITORY / "configs", "--config-name", "translation",
        f"task.data={digits}", "task.lang_pairs='en-aa,en-bb'", "model.num_experts=0",
        f"checkpoint.save_dir={tmp_path / 'run'}", f"hydra.run.dir={tmp_path / 'logs'}",
        f"common.user_dir={REPOSITORY / 'fairseq_mtmoe'}", check=False,
    )  # fmt: skip
    assert "`--num-experts` must be at least 1, but is 0 instead." in sentence_of(result)


def test_a_run_goes_on_from_no_damaged_checkpoint(tmp_path):
    last = shutil.copytree(FROZEN / "sparse", tmp_path / "run") / "checkpoint_last.pt"
    os.truncate(last, last.stat().st_size - 1000)
    damaged = last.read_bytes()
    sentence = sentence_of(train(FROZEN / "data", last.parent, *RUNS["sparse"], check=False))
    assert "truncated or damaged; use an older one" in sentence and last.read_bytes() == damaged


def test_a_stock_model_is_upcycled_and_goes_on(digits, tmp_path):
    """Dense with fairseq's own parts, sparse with mtmoe, looked at, and on with fairseq-train, moments and all."""
    pairs = ("--lang-pairs", "en-aa,en-bb,en-cc")
    stock = ("--task", "translation_multi_simple_epoch", *pairs, "--encoder-langtok", "tgt", "--decoder-langtok",
             "--arch", "transformer_tiny", "--share-all-embeddings")  # fmt: skip
    train_here(digits, tmp_path / "dense", *stock, "--max-update", 4)
    sparse = tmp_path / "sparse.pt"
    shown = mtmoe("upcycle", tmp_path / "dense" / "checkpoint_last.pt", sparse, "--num-experts", 4)
    assert "4 experts per layer, with the optimizer state" in shown
    shown = run("fairseq-validate", digits, *PLUGIN, "--task", "translation_heated", *pairs, "--path", sparse,
                "--cpu", "--max-tokens", 4000).stdout  # fmt: skip
    assert "en-cc_ppl" in shown
    options = ("--arch", "base_moe_tiny", "--continue-once", sparse, "--max-update", 6,
               "--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")  # fmt: skip
    found = train_here(digits, tmp_path / "on", *options, "--encoder-ffn-embed-dim", 64)
    state = torch.load(tmp_path / "on" / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 6 and len(found["losses"]) == 2
    steps = {entry["step"] for entry in state["last_optimizer_state"]["state"].values()}
    assert steps == {2, 6}  # of gates, which are new, and of all else
    assert any(".moe.experts." in key for key in state["model"])
