"""Wrong input to the real commands: one sentence, and nothing changed."""

import os
import shutil

import pytest
import torch

from tests.helpers.commands import PLUGIN, REPOSITORY, run, train
from tests.helpers.training import train_here


def sentence_of(result) -> str:
    """The error line of a command that must have failed, without a stack trace."""
    assert result.returncode != 0
    assert "Traceback" not in result.stderr, result.stderr[-3000:]
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr[-3000:]
    return lines[0]


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    """A run of four updates, dense for two, with 4 experts."""
    folder = tmp_path_factory.mktemp("trained")
    train(digits, folder, "--dense-updates", 2, "--max-update", 4)
    return folder


def test_wrong_options(digits, tmp_path):
    assert "zz" in sentence_of(train(digits, tmp_path / "run", "--lang-pairs", "en-aa,en-zz", check=False))
    options = ("--task", "translation", "-s", "en", "-t", "aa", "--arch", "base_moe_tiny", "--expert-gates", "task")
    result = train(digits, tmp_path / "run", *options, check=False)
    assert "each sentence a task id" in sentence_of(result)
    assert not list((tmp_path / "run").glob("*.pt"))


def test_wrong_option_in_a_configuration(digits, tmp_path):
    result = run(
        "fairseq-hydra-train", "--config-dir", REPOSITORY / "configs" / "debug", "--config-name", "tiny",
        f"task.data={digits}", "task.lang_pairs='en-aa,en-bb'", "model.num_experts=0",
        f"checkpoint.save_dir={tmp_path / 'run'}", f"hydra.run.dir={tmp_path / 'logs'}",
        f"common.user_dir={REPOSITORY / 'fairseq_mtmoe'}", check=False,
    )  # fmt: skip
    assert "`--num-experts` must be at least 1, but is 0 instead." in sentence_of(result)


@pytest.mark.parametrize("name", ["dict.bb.txt", "train.en-bb.bb.bin"])
def test_data_that_is_not_there_or_not_whole(digits, tmp_path, name):
    data = tmp_path / "data"
    shutil.copytree(digits, data)
    os.truncate(data / name, (data / name).stat().st_size // 2)
    if name == "dict.bb.txt":
        (data / name).unlink()
    sentence = sentence_of(train(data, tmp_path / "run", check=False))
    assert name.removesuffix(".bin") in sentence


def test_checkpoint_of_another_number_of_experts(digits, trained):
    before = (trained / "checkpoint_last.pt").read_bytes()
    sentence = sentence_of(train(digits, trained, "--num-experts", 8, "--max-update", 6, check=False))
    assert "`--num-experts` must be 4 as in the checkpoint's" in sentence
    assert (trained / "checkpoint_last.pt").read_bytes() == before


def test_damaged_checkpoint(digits, trained, tmp_path):
    broken = tmp_path / "checkpoint_last.pt"
    broken.write_bytes((trained / "checkpoint_last.pt").read_bytes()[:-1000])
    assert "truncated or damaged; use an older one" in sentence_of(
        train(digits, tmp_path, "--max-update", 6, check=False)
    )
    options = (*PLUGIN, "--task", "translation_heated", "-s", "en", "-t", "aa", "--path", broken, "--cpu")
    assert "truncated or damaged" in sentence_of(run("fairseq-generate", digits, *options, check=False))


def test_a_checkpoint_that_would_execute(digits, trained, tmp_path):
    """What a file's options say is not done; see tests/unit/checkpoints/test_untrusted_files.py for more of it."""
    state = torch.load(trained / "checkpoint_last.pt")
    evil = f"__import__('os').mkdir('{tmp_path / 'executed'}') or [(8, 3, 1)]"
    state["cfg"]["model"] = {"_name": "wav2vec2", "conv_feature_layers": evil}
    torch.save(state, tmp_path / "evil.pt")
    options = (digits, *PLUGIN, "--task", "translation_heated", "-s", "en", "-t", "aa", "--cpu")
    sentence = sentence_of(run("fairseq-generate", *options, "--path", tmp_path / "evil.pt", check=False))
    assert "is of 'wav2vec2'; where you trust whoever made the file, set the environment" in sentence
    assert not (tmp_path / "executed").exists()


def test_unknown_language_at_generation(digits, trained):
    result = run(
        "fairseq-generate", digits, *PLUGIN, "--task", "translation_heated", "-s", "en", "-t", "zz", "--path",
        trained / "checkpoint_last.pt", "--cpu", check=False,
    )  # fmt: skip
    assert "zz" in sentence_of(result)


def test_a_stock_model_is_upcycled_and_goes_on(digits, tmp_path):
    """Dense with fairseq's own parts, sparse with mtmoe, looked at, and on with fairseq-train, moments and all."""
    pairs = ("--lang-pairs", "en-aa,en-bb,en-cc")
    stock = ("--task", "translation_multi_simple_epoch", *pairs, "--encoder-langtok", "tgt", "--decoder-langtok",
             "--arch", "transformer_tiny", "--share-all-embeddings")  # fmt: skip
    train_here(digits, tmp_path / "dense", *stock, "--max-update", 4)
    sparse = tmp_path / "sparse.pt"
    result = run("mtmoe", "upcycle", tmp_path / "dense" / "checkpoint_last.pt", sparse, "--num-experts", 4)
    assert "4 experts per layer, with the optimizer's moments" in result.stdout
    shown = run("fairseq-validate", digits, *PLUGIN, "--task", "translation_heated", *pairs, "--path", sparse,
                "--cpu", "--max-tokens", 4000).stdout  # fmt: skip
    assert "en-cc_ppl" in shown
    options = ("--arch", "base_moe_tiny", "--continue-once", sparse, "--max-update", 6,
               "--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")  # fmt: skip
    assert sentence_of(train(digits, tmp_path / "on", *options, check=False)) == (
        "error: `--encoder-ffn-embed-dim` must be 64 and `--decoder-ffn-embed-dim` 64 to load "
        f"`{sparse}`, but they are 128 and 128 instead."
    )
    assert not list((tmp_path / "on").glob("*.pt"))
    train_here(digits, tmp_path / "on", *options, "--encoder-ffn-embed-dim", 64)
    state = torch.load(tmp_path / "on" / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 6
    assert any(".moe.experts." in key for key in state["model"])
