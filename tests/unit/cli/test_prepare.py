"""`mtmoe prepare`, in process; the data's own tests are in tests/unit/data/corpora."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import chain, islice
from pathlib import Path

import pytest

from fairseq_mtmoe.cli import _preparing as preparing
from fairseq_mtmoe.data.corpora.data_dir import content_hash, fingerprint
from fairseq_mtmoe.data.corpora.recipes import schema as recipes
from fairseq_mtmoe.errors import UserError
from tests.helpers.catalogs import write_catalog
from tests.helpers.invoked import invoked, mtmoe
from tests.helpers.raw_corpora import digests, text_of
from tests.helpers.refused import refused

MESSAGES = [f"{verb} the {noun}" for verb in ("Open", "Close", "Copy", "Move", "Read", "Find") for noun in
            ("file", "folder", "user", "page", "image", "letter", "table", "door", "window", "garden")]  # fmt: skip
run = partial(mtmoe, "prepare")
SMALL = ["--vocab-size", "45", "--character-coverage", "1"]
SIZES = ["--valid-size", "3", "--test-size", "4"]


def reverse(text):
    return " ".join(word[::-1] for word in text.split())


@pytest.fixture
def folder(tmp_path):
    for locale, number in (("de", 60), ("fr", 25), ("et", 9)):
        write_catalog(tmp_path / "locale", locale, [(message, reverse(message)) for message in MESSAGES[:number]])
    return tmp_path / "locale"


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, messages in (("train", MESSAGES[8:]), ("valid", MESSAGES[:4]), ("test", MESSAGES[4:8])):
        (folder / f"{split}.en-de.en").write_text("\n".join(messages))
        (folder / f"{split}.en-de.de").write_text("\n".join(map(reverse, messages)))
    return folder


def test_catalogs_give_a_data_directory(tmp_path, folder):
    output = run("catalogs", tmp_path / "out", "--folder", folder, *SIZES, *SMALL)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {pair: numbers["train"] for pair, numbers in report["pairs"].items()} == {"en-de": 53, "en-fr": 18}
    assert report["left_out"] == {"et": 9}
    assert "en-fr" in output and "report.md" in output
    for lang in ("de", "fr"):
        train, *held_out = (
            [text_of(tmp_path / "out", f"{split}.en-{lang}.{side}") for side in ("en", lang)]
            for split in ("train", "valid", "test")
        )
        sources, targets = (list(chain(*texts)) for texts in zip(train, *held_out, strict=True))
        assert targets == list(map(reverse, sources))
        assert sorted(sources) == sorted(MESSAGES[: {"de": 60, "fr": 25}[lang]])
        assert train[0] == sorted(train[0])  # in the catalog's order


def test_a_rerun_does_nothing_until_something_changes(tmp_path, folder):
    args = ("catalogs", tmp_path / "out", "--folder", folder, *SIZES, *SMALL, "--langs", "de, fr")
    run(*args)
    before = (tmp_path / "out").stat().st_mtime_ns
    folders = tmp_path.stat().st_mtime_ns
    assert "is up to date" in run(*args)
    assert (tmp_path / "out").stat().st_mtime_ns == before and tmp_path.stat().st_mtime_ns == folders
    whole = digests(tmp_path / "out")
    with pytest.raises(UserError, match=r"was made with max_langs None \(now 1\), seed 1 \(now 2\), and models"):
        run(*args, "--max-langs", 1, "--seed", 2)
    (folder / "fr" / "LC_MESSAGES" / "app.mo").write_bytes((folder / "et" / "LC_MESSAGES" / "app.mo").read_bytes())
    with pytest.raises(UserError, match=r"out` was made from other text, and models .*--overwrite to replace it\."):
        run(*args)
    assert digests(tmp_path / "out") == whole
    assert "Wrote" in run(*args[:-1], "de", "--overwrite")
    assert not (tmp_path / "out" / "dict.fr.txt").exists()


def test_default_packages_are_read_unless_a_folder_is_given(tmp_path, folder, monkeypatch):
    asked = []
    monkeypatch.setattr("fairseq_mtmoe.cli._preparing.find_catalogs", lambda *args: asked.append(args[:2]) or 1 / 0)
    for options in ([], ["--packages", ""], ["--folder", folder], ["--folder", folder, "--packages", "sphinx"]):
        with pytest.raises(ZeroDivisionError):
            run("catalogs", tmp_path / "out", *options)
    assert asked == [(["pycountry", "django", "sphinx"], ()), ([], ()), ([], (folder,)), (["sphinx"], (folder,))]


def test_text_gives_a_data_directory(tmp_path, raw):
    (raw / "tiers.json").write_text('{"T3-low": ["de"]}')
    result = invoked("prepare", "text", raw, tmp_path / "out", *SMALL)
    assert "en-de" in result.stdout and "Encoding: 60 of 60 pairs" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Writing shards: 52 of 52 pairs")
    assert json.loads((tmp_path / "out" / "tiers.json").read_text())["low"] == ["en-de"]
    assert "is up to date" in run("text", raw, tmp_path / "out", *SMALL)
    (raw / "tiers.json").write_text('{"high": ["de"]}')
    with pytest.raises(UserError, match="was made from other text, and models"):
        run("text", raw, tmp_path / "out", *SMALL)
    (tmp_path / "mine.json").write_text('{"mid": ["en-de"]}')
    run("text", raw, tmp_path / "out", *SMALL, "--tiers", tmp_path / "mine.json", "--overwrite")
    assert json.loads((tmp_path / "out" / "tiers.json").read_text())["mid"] == ["en-de"]


def test_files_that_a_recipe_of_all_pairs_does_not_read_are_named(tmp_path, raw):
    for lang in ("en", "de"):
        (raw / f"valid.en-de.{lang}").rename(raw / f"dev.en-de.{lang}")
    (raw / "notes.txt").write_text("no side of a pair")
    options = ("--recipe", "folder", "--workers", "1")
    shipped = Path(recipes.__file__).with_name("folder.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(f"{shipped}\nheld_out: {{valid: 3, test: 3}}\n")
    result = invoked("prepare", "corpora", raw, tmp_path / "out", "--recipe", tmp_path / "mine.yaml", "--workers", "1")
    assert "Not read, as the recipe has no such files: dev.en-de.de, dev.en-de.en.\n" in result.stderr
    for lang in ("en", "de"):
        (raw / f"dev.en-de.{lang}").rename(raw / f"valid.en-de.{lang}")
    assert "Not read" not in invoked("prepare", "corpora", raw, tmp_path / "all", *options).stderr


@pytest.mark.parametrize("form", ["text", "corpora"])
def test_the_vocabulary_of_another_directory_is_kept_with_its_languages_first(tmp_path, raw, folder, form):
    old, new = tmp_path / "old", tmp_path / "new"
    run("catalogs", old, "--folder", folder, *SIZES, *SMALL)
    for name in list(raw.iterdir()):
        name.rename(raw / name.name.replace("de", "da"))
    options = ("--recipe", "folder", "--workers", 1) if form == "corpora" else ()
    said = run(form, raw, new, *options, "--vocabulary-from", old)
    assert "`mtmoe add-task CHECKPOINT OUT --task da`" in said and f"--lang-dict {new / 'langs.txt'}" in said
    assert (new / "langs.txt").read_text().split() == ["de", "en", "fr", "da"]
    assert (new / "spm.model").read_bytes() == (old / "spm.model").read_bytes()
    assert (new / "dict.da.txt").read_bytes() == (old / "dict.en.txt").read_bytes()
    assert (new / "lang_pairs.txt").read_text() == "en-da\n"
    assert "up to date" in run(form, raw, new, *options, "--vocabulary-from", os.path.relpath(old))
    (old / "spm.model").write_bytes(b"another")
    with pytest.raises(UserError, match=r"was made (with|from other text)"):
        run(form, raw, new, *options, "--vocabulary-from", old)


def test_text_of_unequal_length_is_taken_only_where_that_is_asked_for(tmp_path, raw):
    lines = (raw / "train.en-de.de").read_text().splitlines()
    (raw / "train.en-de.de").write_text("\n".join(lines[:50]))
    with refused("train.en-de.en", "train.en-de.de"):
        run("text", raw, tmp_path / "out", *SMALL)
    assert not (tmp_path / "out").exists()
    said = run("text", raw, tmp_path / "out", *SMALL, "--allow-unequal")
    assert "en-de: one of the training files has 2 more lines" in said
    report = json.loads((tmp_path / "out" / "report.json").read_text())["pairs"]["en-de"]
    assert (report["train"], report["dropped"]) == (50, {"unequal": 2})
    with pytest.raises(UserError, match="was made with allow_unequal True"):
        run("text", raw, tmp_path / "out", *SMALL)


def test_data_of_earlier_versions_stays_but_for_text_that_0_1_0_took_for_other_lines(tmp_path, raw):
    options = {"vocab_size": 45, "character_coverage": 1.0, "temperature": 5.0, "seed": 1, "shards": 1}

    def pretend():  # with the fingerprint that versions up to 0.1.8 gave
        run("text", raw, tmp_path / "out", *SMALL, "--overwrite")
        stamp = json.loads((tmp_path / "out" / "stamp.json").read_text())
        pair = [raw / f"{split}.en-de.{lang}" for split in ("train", "valid", "test") for lang in ("en", "de")]
        hashes = [(path.name, content_hash(path)) for path in pair]
        stamp["key"] = fingerprint({"command": "text", **options}, hashes, 1)
        del stamp["made_with"]
        (tmp_path / "out" / "stamp.json").write_text(json.dumps(stamp))

    pretend()
    assert "is up to date" in run("text", raw, tmp_path / "out", *SMALL)
    path = raw / "train.en-de.en"
    path.write_bytes(path.read_bytes().replace(b" the ", b"\rthe ", 1))
    pretend()
    with pytest.raises(UserError, match="was made from other text or with other settings"):
        run("text", raw, tmp_path / "out", *SMALL)


def test_a_run_that_was_stopped_goes_on_and_leaves_nothing_but_what_it_made(tmp_path, folder, monkeypatch):
    args = ("catalogs", tmp_path / "out", "--folder", folder, *SIZES, *SMALL)
    run(*args)
    monkeypatch.setattr("fairseq_mtmoe.data.corpora.engine.encoding.encode_block", lambda *job: 1 / 0)
    with pytest.raises(UserError, match="must leave et messages for training"):
        run("catalogs", tmp_path / "again", "--folder", folder, "--langs", "et", *SIZES[:3], 6)
    with pytest.raises(ZeroDivisionError):
        run("catalogs", tmp_path / "again", *args[2:])
    assert sorted(path.name for path in tmp_path.iterdir()) == [".again.work", "locale", "out"]
    monkeypatch.undo()
    monkeypatch.setattr("fairseq_mtmoe.data.corpora.readers.messages.polib.mofile", None)  # done before
    monkeypatch.setattr("fairseq_mtmoe.data.corpora.vocabulary.training.train_model_apart", None)  # done before
    run("catalogs", tmp_path / "again", *args[2:])
    assert digests(tmp_path / "again") == digests(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "locale", "out"]


def test_large_text_is_prepared_by_all_cores(tmp_path, raw, monkeypatch):
    asked = []
    monkeypatch.setattr(preparing, "local_workers", lambda count: asked.append(count) or 1 / 0)
    monkeypatch.setattr(preparing, "cores", lambda: 3)
    for size in (1 << 30, 1):
        monkeypatch.setattr(preparing, "BYTES_FOR_A_PROCESS", size)
        with pytest.raises(ZeroDivisionError):
            run("text", raw, tmp_path / "out", *SMALL)
    assert asked == [1, 3]


def test_wrong_input_leaves_no_trace(tmp_path, folder, raw):
    out, pipes = tmp_path / "out", tmp_path / "raw" / "pipes"
    pipes.mkdir()
    for path in raw.glob("*.en-de.*"):
        (pipes / path.name).symlink_to(path)
    (pipes / "train.en-de.de").unlink()
    os.mkfifo(pipes / "train.en-de.de")
    for args, name in (
        (("catalogs", out, "--folder", folder, "--test-size", 0), "--test-size"),
        (("catalogs", out, "--packages", "no_such_package"), "--packages"),
        (("text", raw, out, *SMALL, "--temperature", 0), "--temperature"),
        (("text", raw, out, *SMALL, "--temperature", "inf"), "--temperature"),
        (("text", raw, out, "--vocab-size", 7), "--vocab-size"),
        (("text", raw, out, "--character-coverage", "nan"), "--character-coverage"),
        (("text", tmp_path / "nowhere", out), "nowhere"),
        (("corpora", tmp_path / "nowhere", out, "--recipe", "folder"), "nowhere"),
        (("corpora", raw, out, "--recipe", "nothing"), "--recipe"),
        (("corpora", raw, out, "--recipe", "folder", "--workers", 2, "--scheduler", "tcp://x:1"), "--workers"),
        (("text", pipes, out), "train.en-de.de"),
        (("text", raw, out, "--vocabulary-from", tmp_path / "none"), "--vocabulary-from"),
        (("text", raw, out, "--vocabulary-from", raw), "spm.model"),
        (("text", raw, out, "--vocabulary-from", raw, *SMALL), "--vocab-size"),
    ):
        with refused(name):
            run(*args)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["locale", "raw"]


def test_an_interrupt_in_the_longest_step_acts_at_once(tmp_path, raw):
    draw = random.Random(1)
    for lang in ("en", "de"):  # about a quarter of a minute of SentencePiece
        words = ("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(150_000))
        (raw / f"train.en-de.{lang}").write_text("".join(f"{' '.join(islice(words, 10))}\n" for _ in range(15_000)))
    code = """
import sys
from fairseq_mtmoe.cli import prepare
from fairseq_mtmoe.data.corpora.vocabulary import training
train = training.train_model_apart
training.train_model_apart = lambda *a, **b: print("training", flush=True) or train(*a, **b)
prepare.command(sys.argv[1:])
"""
    process = subprocess.Popen([sys.executable, "-c", code, "text", raw, tmp_path / "out"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"training\n"
    assert (tmp_path / ".out.partial").exists()
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.work", "raw"]
