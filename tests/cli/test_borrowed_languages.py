"""Adapters of language pairs, from a translator to a language that borrows them, through the real commands."""

import json

import pytest
import torch

from fairseq_mtmoe.errors import find_user_error
from tests.helpers.commands import generate, run
from tests.helpers.refused import refused
from tests.helpers.training import train_here

OLD_LANGS, LANGS = ("--langs", "en,aa,bb"), ("--langs", "en,aa,bb,cc")


def borrower(data, save_dir, dense, pair, *options):
    return train_here(
        data, save_dir, "--arch", "pemt_translation_tiny", "--criterion", "pemt", "--finetune-from-model", dense,
        "--lang-pairs", pair, *LANGS, "--adapter-rank", 4, "--description", f"1 2 3 {pair}", *options,
    )  # fmt: skip


def evaluated(data, checkpoint, pair, folder):
    """The translations of `mtmoe evaluate`."""
    options = ("--lang-pairs", pair, "--max-len-b", 12, "--references", "fairseq", "--cpu", "--overwrite")
    run("mtmoe", "evaluate", data, "--path", checkpoint, "--out", folder, *options)
    return (folder / f"{pair}.hyp").read_text().splitlines()


def in_order(written):
    """Those that `fairseq-generate` has written, in the order of the file."""
    found = [line[2:].split("\t") for line in written.splitlines() if line.startswith("H-")]
    return [text for _, _, text in sorted(found, key=lambda each: int(each[0]))]


def model_of(path):
    return torch.load(path)["model"]


@pytest.fixture(scope="module")
def dense(digits, tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense")
    train_here(
        digits, folder, "--arch", "base_dense_tiny", "--lang-pairs", "en-aa,en-bb", *OLD_LANGS, "--max-update", 20
    )
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="module")
def grown(dense):
    """The translator with a language more, which it got after its sources had been trained."""
    run("mtmoe", "add-task", dense, dense.with_name("grown.pt"), "--task", "cc")
    return dense.with_name("grown.pt")


@pytest.fixture(scope="module")
def sources(digits, dense, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    for pair in ("en-aa", "en-bb"):
        options = ("--pemt-stage", "source", "--max-update", 5, *OLD_LANGS)
        borrower(digits, folder / pair, dense, pair, *options)
    return ",".join(str(folder / pair / f"{pair}.pt") for pair in ("en-aa", "en-bb"))


@pytest.mark.slow
def test_a_language_that_was_added_borrows_is_interrupted_and_merged(digits, grown, sources, tmp_path):
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
    events = [json.loads(line) for line in (tmp_path / "whole" / "mtmoe.jsonl").read_text().splitlines()]
    last = [event for event in events if event["event"] == "sources"][-1]
    assert (last["target"], last["sources"]) == ("en-cc", ["en-aa", "en-bb"])
    assert all(sum(weights) == pytest.approx(1, abs=1e-5) for weights in last["layers"].values())
    run("mtmoe", "merge", path, tmp_path / "merged.pt")
    written = [generate(digits, each, "cc", "--max-len-b", 12) for each in (path, tmp_path / "merged.pt")]
    hypotheses = [[line.split("\t")[2] for line in text.splitlines() if line[:2] == "H-"] for text in written]
    assert len(hypotheses[0]) == 60 and hypotheses[0] == hypotheses[1]
    source = sources.split(",")[0].replace("en-aa.pt", "checkpoint_last.pt")
    assert evaluated(digits, path, "en-cc", tmp_path / "scores") == in_order(written[0])
    source_text = generate(digits, source, "aa", "--max-len-b", 12)
    assert evaluated(digits, source, "en-aa", tmp_path / "scores") == in_order(source_text)


@pytest.mark.slow
def test_sources_of_another_translator_and_several_pairs_are_refused(digits, grown, sources, tmp_path):
    state = torch.load(grown)
    state["model"]["encoder.layers.0.fc1.bias"] += 1
    torch.save(state, tmp_path / "other.pt")
    with pytest.raises(Exception) as caught:
        borrower(digits, tmp_path / "run", tmp_path / "other.pt", "en-cc", "--pemt-sources", sources)
    assert "but its backbone is another" in str(find_user_error(caught.value))
    with refused("--lang-pairs"):
        borrower(digits, tmp_path / "run", grown, "en-cc,en-aa")
