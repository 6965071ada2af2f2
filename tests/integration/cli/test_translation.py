"""Prove that it learns, through the real commands: copy, reverse and shift digits, as three "languages"; and borrow."""

import json

import pytest
import torch

from tests.helpers.commands import PLUGIN, bleu_of, generate, run, train
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused
from tests.helpers.training import train_here

OURS = ("--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")
UPDATES = 450


def test_it_learns_to_translate(many_digits, tmp_path):
    """Dense at first; then one layer's gates are of tokens, the other's of languages."""
    length = ("--max-update", UPDATES, "--total-num-update", UPDATES, "--max-epoch", 100, "--heating-coefficient", 3,
              "--max-tokens", 500)  # fmt: skip
    train(many_digits, tmp_path, "--expert-gates", "base,task", "--dense-updates", 150, *OURS, *length)
    mtmoe("evaluate", many_digits, "--path", tmp_path / "checkpoint_best.pt", "--out", tmp_path / "scores", "--cpu")
    scores = json.loads((tmp_path / "scores" / "scores.json").read_text())
    bleu = {pair: result["bleu"] for pair, result in scores["pairs"].items()}
    assert set(bleu) == {"en-aa", "en-bb", "en-cc"} and min(bleu.values()) >= 95, bleu
    stock = generate(many_digits, tmp_path / "checkpoint_best.pt", "bb")
    assert bleu_of(stock) == pytest.approx(bleu["en-bb"], abs=0.01)
    translated = run(
        "fairseq-interactive", many_digits, *PLUGIN, "--task", "translation_heated", "--source-lang", "en",
        "--target-lang", "bb", "--path", tmp_path / "checkpoint_best.pt", "--encoder-langtok", "tgt",
        "--decoder-langtok", "--cpu", stdin="1 2 3 4 5\n",
    ).stdout  # fmt: skip
    assert "5 4 3 2 1" in translated


def model_of(path):
    return torch.load(path)["model"]


def states(path):
    checkpoint = torch.load(path)
    moments = checkpoint["last_optimizer_state"]["state"]
    return {
        **checkpoint["model"],
        **{f"{index}.{key}": torch.as_tensor(moments[index][key]) for index in moments for key in moments[index]},
    }


def test_resuming_before_and_after_becoming_sparse_changes_no_bit(many_digits, tmp_path):
    """Interrupted in the middle of an epoch, after 4 (dense) and 8 updates (sparsification); also what adapts."""
    options = (*OURS, "--dense-updates", 8, "--expert-gates", "base,task", "--dropout", 0.1,
               "--conditional", "attention,norm,alignment,bottleneck",
               "--heating-coefficient", 3, "--max-epoch", 50, "--virtual-epoch-size", 700)  # fmt: skip
    for name, updates in (("whole", 10), ("parts", 4), ("parts", 8), ("parts", 10)):
        train_here(many_digits, tmp_path / name, *options, "--max-update", updates)
    whole, parts = (states(tmp_path / folder / "checkpoint_last.pt") for folder in ("whole", "parts"))
    assert any(".moe." in key for key in whole) and whole.keys() == parts.keys()
    assert [key for key in whole if not torch.equal(whole[key], parts[key])] == []


# ---- adapters of language pairs, and a language that borrows them ----

OLD_LANGS, LANGS = ("--langs", "en,aa,bb"), ("--langs", "en,aa,bb,cc")


def borrower(data, save_dir, dense, pair, *options):
    return train_here(
        data, save_dir, "--arch", "pemt_translation_tiny", "--criterion", "pemt", "--finetune-from-model", dense,
        "--lang-pairs", pair, *LANGS, "--adapter-rank", 4, "--description", f"1 2 3 {pair}", *options,
    )  # fmt: skip


def evaluated(data, checkpoint, pair, folder):
    options = ("--lang-pairs", pair, "--max-len-b", 12, "--references", "fairseq", "--cpu", "--overwrite")
    mtmoe("evaluate", data, "--path", checkpoint, "--out", folder, *options)
    return (folder / f"{pair}.hyp").read_text().splitlines()


def in_order(written):
    """Those that `fairseq-generate` has written, in the order of the file."""
    found = [line[2:].split("\t") for line in written.splitlines() if line.startswith("H-")]
    return [text for _, _, text in sorted(found, key=lambda each: int(each[0]))]


def test_a_language_that_was_added_borrows_is_interrupted_and_merged(digits, tmp_path):
    """The translator gets the language after its sources have been trained."""
    options = ("--arch", "base_dense_tiny", "--lang-pairs", "en-aa,en-bb", *OLD_LANGS, "--max-update", 20)
    train_here(digits, tmp_path, *options)
    dense, grown = tmp_path / "checkpoint_last.pt", tmp_path / "grown.pt"
    for pair in ("en-aa", "en-bb"):
        borrower(digits, tmp_path / pair, dense, pair, "--pemt-stage", "source", "--max-update", 5, *OLD_LANGS)
    mtmoe("add-task", dense, grown, "--task", "cc")
    sources = ",".join(str(tmp_path / pair / f"{pair}.pt") for pair in ("en-aa", "en-bb"))
    options = ("--pemt-sources", sources, "--dropout", 0.1)
    borrower(digits, tmp_path / "whole", grown, "en-cc", *options, "--max-update", 8)
    borrower(digits, tmp_path / "parts", grown, "en-cc", *options, "--max-update", 5)
    borrower(digits, tmp_path / "parts", grown, "en-cc", *options[2:], "--max-update", 8)  # from the checkpoint alone
    path = tmp_path / "whole" / "checkpoint_last.pt"
    whole, parts, begun = (model_of(each) for each in (path, tmp_path / "parts" / "checkpoint_last.pt", grown))
    assert [key for key in whole if not torch.equal(whole[key], parts[key])] == []
    changed = {key for key in begun if not torch.equal(begun[key], whole[key])}
    assert changed and all("layer_norm" in key for key in changed)
    trained = {key for key in whole if ".gate." in key or ".target_adapter." in key or key == "encoder.prompt.weight"}
    assert len(torch.load(path)["last_optimizer_state"]["state"]) == len(trained | changed)
    merged, source = tmp_path / "merged.pt", tmp_path / "en-aa" / "checkpoint_last.pt"
    mtmoe("merge", path, merged)
    for each, lang in ((path, "cc"), (source, "aa")):
        written = in_order(generate(digits, each, lang, "--max-len-b", 12))
        assert len(written) == 13 and evaluated(digits, each, f"en-{lang}", tmp_path / "scores") == written
    assert evaluated(digits, merged, "en-cc", tmp_path / "scores") == evaluated(digits, path, "en-cc", tmp_path / "all")
    with refused("--lang-pairs"):  # several
        borrower(digits, tmp_path / "run", grown, "en-cc,en-aa")
