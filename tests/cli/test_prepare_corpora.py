"""`mtmoe prepare` as a user runs it: killed and run again, and its shards in the hands of stock fairseq."""

import json
import os
import re
import signal
import time

import pytest
from click.testing import CliRunner

from fairseq_mtmoe.cli import prepare
from tests.helpers.catalogs import MESSAGES, translate, write_catalog
from tests.helpers.commands import run, start_command, train
from tests.helpers.raw_corpora import digests, prepare_small, sentences, write_corpus, write_raw

SMALL_BLOCKS = "from fairseq_mtmoe.data.corpora.engine import reading; reading.BLOCK = 20"
SLOWLY = """
import time
from fairseq_mtmoe.data.corpora.engine import encoding
encode = encoding.encode_lines
encoding.encode_lines = lambda *arguments: (time.sleep(0.3), encode(*arguments))[1]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Raw corpora, and the data directory that is made of them."""
    folder = tmp_path_factory.mktemp("corpora")
    write_raw(folder / "raw")
    prepare_small(folder / "raw", folder / "data")
    return folder


def test_killed_by_signal_9_it_goes_on_to_the_same_bytes(made, tmp_path):
    raw, data = made / "raw", tmp_path / "data"
    command = ("mtmoe", "prepare", "corpora", raw, data, "--recipe", raw / "recipe.yaml", "--workers", 1)
    with start_command(*command, before=SMALL_BLOCKS + SLOWLY) as first:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob(".data.work/ids-*/*.npz")):
            assert time.monotonic() < deadline, first.err()
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)
        assert first.wait(30) == -signal.SIGKILL
    assert not data.exists()
    before = set(tmp_path.glob(".data.work/ids-*/*.npz"))
    times = {path: path.stat().st_mtime_ns for path in before}
    with start_command(*command, before=SMALL_BLOCKS) as second:
        assert second.wait(120) == 0, second.err()
        assert f"Wrote {data}" in second.out()
        assert re.search(r"Encoding: [\d,]+ of [\d,]+ pairs, [\d,]+ pairs/s", second.err())
    assert {path: path.stat().st_mtime_ns for path in before} == times
    assert digests(data) == digests(made / "data")
    log = (tmp_path / ".data.work" / "log.txt").read_text()
    assert log.count("Reading and cleaning") == 2 and "pairs/s" in log  # named, and its end: by the first run alone


def test_what_is_wrong_is_one_sentence(made, tmp_path):
    raw = made / "raw"
    command = ("mtmoe", "prepare", "corpora", raw, tmp_path / "data", "--recipe")
    for arguments, sentence in (
        (("nothing",), "`--recipe` must be one of"),
        ((raw / "recipe.yaml", "--workers", 2, "--scheduler", "tcp://x:1"), "`--workers` must be absent with"),
    ):
        result = run(*command, *arguments, check=False)
        assert result.returncode == 1 and result.stderr.startswith(f"error: {sentence}")
        assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_without_what_is_missing(made, tmp_path):
    raw = tmp_path / "raw"
    write_raw(raw)
    (raw / "train-de-1.en").unlink()
    with open(raw / "train-et-0.en", "ab") as file:
        file.write(b"caf\xe9\n \n\n")
    command = ("mtmoe", "prepare", "corpora", raw, tmp_path / "data", "--recipe", raw / "recipe.yaml", "--workers", 1)
    refused = run(*command, "--skip-missing", check=False)
    assert refused.returncode == 1 and not (tmp_path / "data").exists()
    sentence = f"`{raw}/train-et-0.en` must have as many lines as `{raw}/train-et-0.et` (54), but has 57 lines; where"
    assert sentence in refused.stderr.splitlines()[-1]
    result = run(*command, "--skip-missing", "--allow-unequal")
    assert "Left out" in result.stderr and "train-de-1" in result.stderr
    assert "only the first 54 of both are used" in (tmp_path / ".data.work" / "log.txt").read_text()
    assert "What could not be read is left out (3 unequal); bad_lines.tsv lists it." in result.stderr
    assert "train-et-0.en has 57 lines, its translation 54; only the first 54 of both are used" in result.stderr


def test_blocks_that_a_file_has_no_room_for(made, tmp_path):
    command = ("mtmoe", "prepare", "corpora", made / "raw", tmp_path / "data", "--recipe", made / "raw" / "recipe.yaml")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"
    with start_command(*command, "--workers", 2, before=limit) as process:
        assert process.wait(120) == 1
        assert process.err().splitlines()[-1] == f"error: `{tmp_path}/data` cannot be written: File too large."
    assert not (tmp_path / "data").exists()


def test_a_folder_with_settings(made, tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    for lang, size in (("de", 90), ("et", 70)):
        write_corpus(raw, f"train.en-{lang}", sentences(lang, size), sentences((lang, 1), size, lang), f"en-{lang}")
    command = ("mtmoe", "prepare", "corpora", raw, tmp_path / "data", "--recipe", "folder", "--workers", 1)
    settings = ("--vocab-size", 70, "--character-coverage", 1, "--held-out", 12)
    result = run(*command, *settings)
    report = json.loads((tmp_path / "data" / "report.json").read_text())
    assert [(pair["valid"], pair["test"]) for pair in report["pairs"].values()] == [(12, 12), (12, 12)]
    assert len((tmp_path / "data" / "dict.de.txt").read_text().splitlines()) == 66  # and fairseq's four
    assert "directions" in result.stdout and "--vocab-size" not in result.stderr
    run(*command, *settings[2:], "--overwrite")
    log = (tmp_path / ".data.work" / "log.txt").read_text()
    assert "pieces, as nothing says how many: two for each different character and one more for every 4,000" in log
    for option, value in (("--vocab-size", 100_000), ("--held-out", 80)):
        refused = run(*command, *settings, option, value, "--overwrite", check=False)
        assert refused.returncode == 1 and option in refused.stderr.splitlines()[-1]
    refused = run(*command[:6], made / "raw" / "recipe.yaml", "--vocab-size", 70, check=False)
    assert "`--vocab-size` must be absent with a recipe that says this itself" in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize("task", ["translation_multi_simple_epoch", "translation_heated"])
def test_fairseq_trains_on_the_shards(task, made, tmp_path):
    data = made / "data"
    langs = ("--lang-dict", data / "langs.txt", "--lang-pairs", data / "lang_pairs.txt")
    if task == "translation_multi_simple_epoch":  # stock fairseq reads no file of pairs, and finds no shards
        langs = ("--lang-dict", data / "langs.txt", "--lang-pairs", "en-de,en-et")
        data = ":".join(map(str, sorted(data.glob("shard*"))))
    result = train(
        data, tmp_path, "--task", task, *langs, "--encoder-langtok", "tgt", "--decoder-langtok",
        "--sampling-method", "temperature", "--sampling-temperature", 1.5, "--max-epoch", 3, "--disable-validation",
    )  # fmt: skip
    output = result.stdout + result.stderr
    assert "end of epoch 3" in output
    if task == "translation_multi_simple_epoch":
        assert re.search(r"num of shards: \{'main:en-de': 3, 'main:en-et': 1\}", output)


def test_stock_fairseq_trains_on_catalogs(tmp_path):
    for locale, share in (("de", 1), ("pt_BR", 2)):
        entries = [(message, translate(message, locale)) for message in MESSAGES[: len(MESSAGES) // share]]
        write_catalog(tmp_path / "locale", locale, entries)
    options = ["--folder", tmp_path / "locale", "--valid-size", 10, "--test-size", 10, "--vocab-size", 60]
    args = ["catalogs", tmp_path / "out", *options, "--character-coverage", 1, "--shards", 2]
    assert CliRunner().invoke(prepare.command, list(map(str, args))).exit_code == 0
    folders = [tmp_path / "out" / f"shard{index}" for index in range(2)]
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
