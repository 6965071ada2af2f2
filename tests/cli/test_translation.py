"""Prove that it learns, through the real commands: copy, reverse and shift digits, as three "languages"."""

import json

import pytest
import torch

from tests.helpers.commands import PLUGIN, bleu_of, generate, run, train
from tests.helpers.training import train_here

OURS = ("--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")
UPDATES = 450


@pytest.mark.slow
def test_it_learns_to_translate(digits, tmp_path):
    """Dense at first; then one layer's gates are of tokens, the other's of languages."""
    length = ("--max-update", UPDATES, "--total-num-update", UPDATES, "--max-epoch", 100, "--heating-coefficient", 3,
              "--max-tokens", 500)  # fmt: skip
    train(digits, tmp_path, "--expert-gates", "base,task", "--dense-updates", 150, *OURS, *length)
    run("mtmoe", "evaluate", digits, "--path", tmp_path / "checkpoint_best.pt", "--out", tmp_path / "scores", "--cpu")
    scores = json.loads((tmp_path / "scores" / "scores.json").read_text())
    bleu = {pair: result["bleu"] for pair, result in scores["pairs"].items()}
    assert set(bleu) == {"en-aa", "en-bb", "en-cc"} and min(bleu.values()) >= 95, bleu
    stock = generate(digits, tmp_path / "checkpoint_best.pt", "bb")
    assert bleu_of(stock) == pytest.approx(bleu["en-bb"], abs=0.01)
    translated = run(
        "fairseq-interactive", digits, *PLUGIN, "--task", "translation_heated", "--source-lang", "en",
        "--target-lang", "bb", "--path", tmp_path / "checkpoint_best.pt", "--encoder-langtok", "tgt",
        "--decoder-langtok", "--cpu", stdin="1 2 3 4 5\n",
    ).stdout  # fmt: skip
    assert "5 4 3 2 1" in translated


def states(path):
    checkpoint = torch.load(path)
    moments = checkpoint["last_optimizer_state"]["state"]
    return {
        **checkpoint["model"],
        **{f"{index}.{key}": torch.as_tensor(moments[index][key]) for index in moments for key in moments[index]},
    }


@pytest.mark.slow
def test_resuming_before_and_after_becoming_sparse_changes_no_bit(digits, tmp_path):
    """Interrupted in the middle of an epoch, after 4 (dense) and 8 updates (sparsification); also what adapts."""
    options = (*OURS, "--dense-updates", 8, "--expert-gates", "base,task", "--dropout", 0.1,
               "--conditional", "attention,norm,alignment,bottleneck",
               "--heating-coefficient", 3, "--max-epoch", 50, "--virtual-epoch-size", 700)  # fmt: skip
    for name, updates in (("whole", 10), ("parts", 4), ("parts", 8), ("parts", 10)):
        train_here(digits, tmp_path / name, *options, "--max-update", updates)
    whole, parts = (states(tmp_path / folder / "checkpoint_last.pt") for folder in ("whole", "parts"))
    assert any(".moe." in key for key in whole) and whole.keys() == parts.keys()
    assert [key for key in whole if not torch.equal(whole[key], parts[key])] == []


def test_the_architectures_train_under_fairseqs_own_task(digits, tmp_path):
    run(
        "fairseq-train", digits, *PLUGIN, "--task", "translation", "-s", "en", "-t", "aa", "--arch", "base_moe_ml50",
        "--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16, "--encoder-attention-heads", 2,
        "--decoder-attention-heads", 2, "--num-experts", 2, "--optimizer", "adam", "--lr", 0.001, "--max-update", 2,
        "--max-tokens", 500, "--save-dir", tmp_path, "--cpu", "--no-progress-bar", "--disable-validation",
    )  # fmt: skip
    weights = torch.load(tmp_path / "checkpoint_last.pt")["model"]
    experts = [key for key in weights if key.endswith("moe.experts.fc1_weight")]
    assert len(experts) == 12 and all(len(weights[key]) == 2 for key in experts)
