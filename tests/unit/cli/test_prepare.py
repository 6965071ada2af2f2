"""`mtmoe prepare`, in process; the data's own tests are in tests/unit/data/corpora."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice

import pytest
from click.testing import CliRunner

from fairseq_mtmoe.cli.main import commands
from fairseq_mtmoe.core.errors import UserError
from tests.helpers.invoked import mtmoe
from tests.helpers.refused import refused

MESSAGES = [f"{verb} the {noun}" for verb in ("Open", "Close", "Copy", "Move", "Read", "Find") for noun in
            ("file", "folder", "user", "page", "image", "letter", "table", "door", "window", "garden")]  # fmt: skip
SMALL = ["--vocab-size", "45", "--character-coverage", "1"]


def prepare(raw, out, *options):
    return mtmoe("prepare", "corpora", raw, out, "--recipe", "folder", "--workers", 1, *options)


def reverse(text):
    return " ".join(word[::-1] for word in text.split())


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, messages in (("train", MESSAGES[8:]), ("valid", MESSAGES[:4]), ("test", MESSAGES[4:8])):
        (folder / f"{split}.en-de.en").write_text("\n".join(messages))
        (folder / f"{split}.en-de.de").write_text("\n".join(map(reverse, messages)))
    return folder


def test_files_that_a_recipe_of_all_pairs_does_not_read_are_named(tmp_path, raw):
    for lang in ("en", "de"):
        (raw / f"valid.en-de.{lang}").rename(raw / f"dev.en-de.{lang}")
    (raw / "notes.txt").write_text("no side of a pair")
    said = prepare(raw, tmp_path / "out", "--held-out", 3)
    assert "Not read, because the recipe has no such files: dev.en-de.de, dev.en-de.en.\n" in said


def test_a_language_that_iso_639_lacks_is_named_with_a_similar_one(tmp_path, raw):
    assert "ISO 639" not in prepare(raw, tmp_path / "known", *SMALL, "--held-out", 3)
    for path in list(raw.iterdir()):
        path.rename(raw / path.name.replace("de", "dq"))
    said = prepare(raw, tmp_path / "out", *SMALL, "--held-out", 3)
    assert "ISO 639 has no language dq (most similar: de): if this is misspelt" in said


def test_the_vocabulary_of_another_directory_is_kept_with_its_languages_first(tmp_path, raw):
    old, new = tmp_path / "old", tmp_path / "new"
    for pair in ("en-fr", "en-et"):
        for path in list(raw.glob("*.en-de.*")):
            shutil.copy(path, raw / path.name.replace("en-de", pair).replace(".de", f".{pair[-2:]}"))
    prepare(raw, old, *SMALL)
    for path in list(raw.glob("*.en-[ef]*")):
        path.unlink()
    for path in list(raw.iterdir()):
        path.rename(raw / path.name.replace("de", "da"))
    said = prepare(raw, new, "--vocabulary-from", old)
    assert f"`mtmoe suggest {new} > train_new.sh`" in said
    assert "`mtmoe add-task CHECKPOINT OUT --task da`" in said and f"--lang-dict {new / 'langs.txt'}" in said
    assert (new / "langs.txt").read_text().split() == ["de", "en", "et", "fr", "da"]
    assert (new / "spm.model").read_bytes() == (old / "spm.model").read_bytes()
    assert (new / "dict.da.txt").read_bytes() == (old / "dict.en.txt").read_bytes()
    assert (new / "lang_pairs.txt").read_text() == "en-da\n"
    assert "up to date" in prepare(raw, new, "--vocabulary-from", os.path.relpath(old))
    (old / "spm.model").write_bytes(b"another")
    with pytest.raises(UserError, match="was made with"):
        prepare(raw, new, "--vocabulary-from", old)


def test_wrong_input_leaves_no_data_directory(tmp_path, raw):
    out = tmp_path / "out"
    for args, name in (
        ((tmp_path / "nowhere", out), "nowhere"),
        ((raw, out, "--recipe", "nothing"), "--recipe"),
        ((raw, out, "--workers", 2, "--scheduler", "tcp://x:1"), "--workers"),
        ((raw, out, "--character-coverage", "nan"), "--character-coverage"),
        ((raw, out, "--vocabulary-from", raw), "spm.model"),
        ((raw, out, "--vocabulary-from", raw, *SMALL), "--vocab-size"),
    ):
        with refused(name):
            mtmoe("prepare", "corpora", *args[:2], "--recipe", "folder", *args[2:])
        assert not out.exists()
    with pytest.raises(UserError, match="requires `--recipe`: wmt15, ml50, catalogs, folder, or a file"):
        mtmoe("prepare", "corpora", raw, out)


def test_a_folder_alone_is_answered_with_the_whole_command(raw):
    result = CliRunner().invoke(commands, ["prepare", str(raw)])
    assert result.exit_code == 2 and "prepare corpora RAW DATA --recipe folder\n" in result.output
    assert f"`corpora` must stand before {raw}." in result.output


def test_too_few_pairs_are_answered_with_a_number_that_works(tmp_path, raw):
    for path in raw.glob("[!t]*"):  # leaves training and test
        path.unlink()
    with refused("held_out") as caught:
        prepare(raw, tmp_path / "out", *SMALL)
    (number,) = re.findall(r"`--held-out (\d+)`", str(caught.value))
    assert "Wrote" in prepare(raw, tmp_path / "out", *SMALL, "--held-out", number)
    with refused("out") as caught:
        prepare(raw, tmp_path / "out", *SMALL)
    assert f"held_out.valid {number} (now 1000)" in str(caught.value)


def test_an_interrupt_in_the_longest_step_acts_at_once(tmp_path, raw):
    draw = random.Random(1)
    for lang in ("en", "de"):  # about a quarter of a minute of SentencePiece
        words = ("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(150_000))
        (raw / f"train.en-de.{lang}").write_text("".join(f"{' '.join(islice(words, 10))}\n" for _ in range(15_000)))
    code = """
import sys
from fairseq_mtmoe.cli.main import main
from fairseq_mtmoe.corpora.vocabulary import training
train = training.train_model_apart
training.train_model_apart = lambda *a, **b: print("training", flush=True) or train(*a, **b)
main()
"""
    arguments = ("prepare", "corpora", raw, tmp_path / "out", "--recipe", "folder", "--workers", "1")
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"training\n"
    assert (tmp_path / ".out.partial").exists()
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.work", "raw"]
