"""`examples/translation`: scripts of WMT-15 and ML-50 that train what the configurations say; one run goes through."""

import json
import os
import shlex
import subprocess

import pytest
import torch

from fairseq_mtmoe import register
from fairseq_mtmoe.cli.main import commands
from tests.cli.test_configurations import GROUPS, differing, from_command_line, from_configuration
from tests.helpers.commands import ENVIRONMENT, PLUGIN, REPOSITORY, run
from tests.helpers.raw_corpora import write_raw
from tests.helpers.scripts import run_script

FOLDER = REPOSITORY / "examples" / "translation"
RECORD = '#!/bin/sh\nprintf "%s\\n" "$(basename "$0")" "$@" > "$CALLS"\n'
BENCHMARKS = ["wmt15", "ml50"]


def called_by(script, folder, *arguments):
    """The command that a script runs at last, as it calls it."""
    for name in ("mtmoe", "fairseq-train"):
        (folder / name).write_text(RECORD)
        (folder / name).chmod(0o755)
    calls = folder / "calls"
    environment = {**ENVIRONMENT, "PATH": f"{folder}:{os.environ['PATH']}", "CALLS": str(calls), "DATA": "DATA"}
    subprocess.run(["bash", script, *arguments], cwd=folder, env=environment, check=True)
    return calls.read_text().splitlines()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_training_is_as_the_configuration_says(name, tmp_path):
    register()
    command, *arguments = called_by(FOLDER / name / "train.sh", tmp_path, "--lr", "0.0007")
    assert command == "fairseq-train"
    called, configuration = from_command_line(shlex.join(arguments)), from_configuration(name, "task.data=DATA")
    own = {"dataset_impl", "save_dir", "langs", "lang_pairs", "lang_dict"}  # the scripts read DATA's lists
    assert {key for _, key in differing(called, configuration, GROUPS)} <= own
    assert called.checkpoint.save_dir == f"runs/{name}/model"
    assert [called.model[key] for key in ("num_experts", "expert_gates", "dense_updates")] == [16, "base", 20000]
    assert arguments[arguments.index("--arch") + 1] == f"base_moe_{name}"  # whose sizes are the configuration's


@pytest.mark.parametrize("name", BENCHMARKS)
def test_preparing_takes_the_recipe(name, tmp_path):
    command, *arguments = called_by(FOLDER / name / "prepare.sh", tmp_path, "RAW", "--workers", "3")
    prepare = commands.get_command(None, "prepare").get_command(None, "corpora")
    asked = prepare.make_context("corpora", arguments[2:]).params
    assert (command, *arguments[:2]) == ("mtmoe", "prepare", "corpora")
    assert (str(asked["raw"]), str(asked["data"])) == ("RAW", f"runs/{name}/data")
    assert (asked["recipe_name"], asked["workers"], asked["skip_missing"]) == (name, 3, name == "ml50")


@pytest.mark.slow
def test_from_raw_text_to_a_table(tmp_path):
    """The three scripts one after the other, with a small recipe and a tiny model."""
    recipe, runs = write_raw(tmp_path / "raw"), tmp_path / "runs"
    scripts = {name: FOLDER / "wmt15" / f"{name}.sh" for name in ("prepare", "train", "evaluate")}
    run_script(scripts["prepare"], tmp_path / "raw", "--recipe", recipe, "--workers", 1, RUNS=runs)
    tiny = (
        "--arch", "base_moe_tiny", "--num-experts", 2, "--dense-updates", 2, "--max-update", 4, "--max-tokens", 400,
        "--virtual-epoch-size", 60, "--validate-interval-updates", 2, "--save-interval-updates", 2, "--cpu",
        "--num-workers", 0, "--log-interval", 1,
    )  # fmt: skip
    run_script(scripts["train"], *tiny, RUNS=runs)
    results = tmp_path / "results"
    options = ("--tiers", "wmt15", "--out", results, "--beam", 1, "--max-len-b", 8, "--cpu")
    printed = run_script(scripts["evaluate"], *options, RUNS=runs)
    scores = json.loads((results / "scores.json").read_text(encoding="utf-8"))
    assert {pair: one["tier"] for pair, one in scores["pairs"].items()} == {"en-de": "high", "en-et": "low"}
    assert "en-de" in printed and (runs / "wmt15" / "model" / "plots" / "sampling.png").exists()


@pytest.mark.rare
def test_a_language_is_added_to_the_demo_s_translator(tmp_path):
    """Nothing is copied by hand: pieces, their order and the weights are those of the model that learns a language."""
    small = (
        "--encoder-embed-dim", 16, "--decoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16, "--num-experts", 2,
        "--decoder-ffn-embed-dim", 16, "--max-update", 4, "--validate-interval-updates", 4,
        "--save-interval-updates", 4, "--log-interval", 1, "--virtual-epoch-size", 400,
    )  # fmt: skip
    catalogs, variables = FOLDER / "catalogs", {"RUNS": tmp_path}
    run_script(catalogs / "prepare.sh", "--langs", "cs,cy", "--vocab-size", 700, **variables)
    run_script(catalogs / "train.sh", *small, "--dense-updates", 2, "--cpu", **variables)
    printed = run_script(FOLDER / "new_language" / "add.sh", *small, "--lr", 0, LANGUAGE="fi", FROM="cs", **variables)
    old, new = tmp_path / "catalogs", tmp_path / "catalogs-fi"
    for name in ("spm.model", "dict.en.txt"):
        assert (old / "data" / name).read_bytes() == (new / "data" / name).read_bytes()
    assert (new / "data" / "langs.txt").read_text() == "cs\ncy\nen\nfi\n"
    grown, trained = (torch.load(path) for path in (new / "grown.pt", new / "model" / "checkpoint_last.pt"))
    assert trained["task_state"]["langs"] == ["cs", "cy", "en", "fi"]
    before, after = (state["model"]["encoder.embed_tokens.weight"] for state in (grown, trained))
    assert torch.equal(before, after) and torch.equal(after[-1], after[-4])  # `fi` begins as `cs`
    assert "en-fi" in printed and "BLEU" in printed
    said = run(
        "fairseq-interactive", old / "data", *PLUGIN, "--task", "translation_heated", "--source-lang", "en",
        "--target-lang", "fi", "--path", new / "model" / "checkpoint_last.pt", "--cpu", "--beam", 2,
        stdin="Language\n\nName of the country\n",
    )  # fmt: skip
    lines = dict(line.split("\t", 1) for line in said.stdout.splitlines() if line[:2] in ("S-", "D-"))
    assert lines["S-0"].split()[1].startswith("▁") and "<unk>" not in "".join(lines.values())
    assert "▁" not in lines["D-0"] + lines["D-2"] and lines["D-1"] == "0.0\t"
    assert f"`--bpe` is not given: {old / 'data' / 'spm.model'} cuts lines into pieces" in said.stderr
