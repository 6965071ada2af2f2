"""Data directories of `mtmoe prepare`, read by stock fairseq: its own task and model, without this plugin."""

import pytest
from click.testing import CliRunner

from fairseq_mtmoe.cli.prepare import command
from tests.helpers.catalogs import MESSAGES, translate, write_catalog
from tests.helpers.commands import run


@pytest.mark.parametrize("shards", [1, 2])
def test_stock_fairseq_trains_on_catalogs(tmp_path, shards):
    for locale, share in (("de", 1), ("pt_BR", 2)):
        entries = [(message, translate(message, locale)) for message in MESSAGES[: len(MESSAGES) // share]]
        write_catalog(tmp_path / "locale", locale, entries)
    out = tmp_path / "out"
    options = ["--folder", tmp_path / "locale", "--valid-size", 10, "--test-size", 10, "--vocab-size", 60]
    args = map(str, ["catalogs", out, *options, "--character-coverage", 1, "--shards", shards])
    assert CliRunner().invoke(command, list(args)).exit_code == 0
    folders = [out] if shards == 1 else [out / f"shard{index}" for index in range(shards)]
    output = run(
        "fairseq-train", ":".join(map(str, folders)), "--task", "translation_multi_simple_epoch",
        "--arch", "transformer_iwslt_de_en", "--lang-pairs", folders[0] / "lang_pairs.txt",
        "--lang-dict", folders[0] / "langs.txt", "--encoder-langtok", "tgt", "--decoder-langtok",
        "--virtual-epoch-size", 200, "--max-tokens", 1000, "--max-epoch", 2, "--optimizer", "adam",
        "--encoder-layers", 1, "--decoder-layers", 1, "--no-save", "--cpu", "--num-workers", 0,
        "--log-format", "simple", "--save-dir", tmp_path / "run",
    ).stdout  # fmt: skip
    assert "valid on 'valid' subset" in output and "end of epoch 2" in output
    for folder in folders:
        assert f"{folder} train en-pt_BR" in output
