"""`mtmoe prepare`, in process; the data's own tests are in tests/unit/data/corpora."""

import json
import random
import signal
import subprocess
import sys
import time
from itertools import islice

import polib
import pytest
from click.testing import CliRunner

from fairseq_mtmoe.cli.prepare import command
from fairseq_mtmoe.errors import UserError

MESSAGES = [f"{verb} the {noun}" for verb in ("Open", "Close", "Copy", "Move", "Read", "Find") for noun in
            ("file", "folder", "user", "page", "image", "letter", "table", "door", "window", "garden")]  # fmt: skip
SMALL = ["--vocab-size", "45", "--character-coverage", "1"]
SIZES = ["--valid-size", "3", "--test-size", "4"]


def reverse(text):
    return " ".join(word[::-1] for word in text.split())


@pytest.fixture
def folder(tmp_path):
    for locale, number in (("de", 60), ("fr", 25), ("et", 9)):
        catalog = polib.POFile()
        catalog.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
        catalog.extend([polib.POEntry(msgid=message, msgstr=reverse(message)) for message in MESSAGES[:number]])
        path = tmp_path / "locale" / locale / "LC_MESSAGES" / "app.mo"
        path.parent.mkdir(parents=True)
        catalog.save_as_mofile(str(path))
    return tmp_path / "locale"


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, messages in (("train", MESSAGES[8:]), ("valid", MESSAGES[:4]), ("test", MESSAGES[4:8])):
        (folder / f"{split}.en-de.en").write_text("\n".join(messages))
        (folder / f"{split}.en-de.de").write_text("\n".join(map(reverse, messages)))
    return folder


def run(*args):
    result = CliRunner().invoke(command, [str(arg) for arg in args])
    if result.exception is not None:
        raise result.exception
    return result.output


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_catalogs_give_a_data_directory(tmp_path, folder):
    output = run("catalogs", tmp_path / "out", "--folder", folder, *SIZES, *SMALL)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {pair: numbers["train"] for pair, numbers in report["pairs"].items()} == {"en-de": 53, "en-fr": 18}
    assert sum(numbers["evaluation_sources_in_training"] for numbers in report["pairs"].values()) == 0
    assert report["left_out"] == {"et": 9}
    assert "en-fr" in output and "report.md" in output
    assert (tmp_path / "out" / "train.en-fr.fr.bin").exists()


def test_the_same_seed_gives_the_same_bytes(tmp_path, folder):
    for out, seed in (("one", 1), ("same", 1), ("other", 2)):
        run("catalogs", tmp_path / out, "--folder", folder, *SIZES, *SMALL, "--seed", seed)
    assert content(tmp_path / "one") == content(tmp_path / "same") != content(tmp_path / "other")


def test_a_rerun_does_nothing_until_something_changes(tmp_path, folder):
    args = ("catalogs", tmp_path / "out", "--folder", folder, *SIZES, *SMALL, "--langs", "de, fr")
    run(*args)
    before = (tmp_path / "out").stat().st_mtime_ns
    assert "is up to date" in run(*args)
    assert (tmp_path / "out").stat().st_mtime_ns == before
    assert "Wrote" in run(*args, "--max-langs", 1)
    assert not (tmp_path / "out" / "dict.fr.txt").exists()


def test_default_packages_are_read_unless_a_folder_is_given(tmp_path, folder, monkeypatch):
    asked = []
    monkeypatch.setattr("fairseq_mtmoe.cli.prepare.find_catalogs", lambda *args: asked.append(args[:2]) or 1 / 0)
    for options in ([], ["--folder", folder], ["--folder", folder, "--packages", "sphinx"]):
        with pytest.raises(ZeroDivisionError):
            run("catalogs", tmp_path / "out", *options)
    assert asked == [(["pycountry", "django", "sphinx"], ()), ([], (folder,)), (["sphinx"], (folder,))]


def test_text_gives_a_data_directory(tmp_path, raw):
    (raw / "tiers.json").write_text('{"T3-low": ["de"]}')
    assert "en-de" in run("text", raw, tmp_path / "out", *SMALL)
    assert json.loads((tmp_path / "out" / "tiers.json").read_text())["low"] == ["en-de"]
    assert (tmp_path / "out" / "raw" / "test.en-de.de").read_text().splitlines() == [reverse(m) for m in MESSAGES[4:8]]
    assert "is up to date" in run("text", raw, tmp_path / "out", *SMALL)
    (raw / "tiers.json").write_text('{"high": ["de"]}')
    assert "Wrote" in run("text", raw, tmp_path / "out", *SMALL)
    (tmp_path / "mine.json").write_text('{"mid": ["en-de"]}')
    run("text", raw, tmp_path / "out", *SMALL, "--tiers", tmp_path / "mine.json")
    assert json.loads((tmp_path / "out" / "tiers.json").read_text())["mid"] == ["en-de"]


def test_text_without_tiers_takes_them_by_size(tmp_path, raw):
    run("text", raw, tmp_path / "out", *SMALL)
    assert json.loads((tmp_path / "out" / "tiers.json").read_text()) == {"high": ["en-de"], "mid": [], "low": []}


def test_wrong_input_leaves_no_trace(tmp_path, folder, raw):
    out = tmp_path / "out"
    for args, sentence in (
        (("catalogs", out, "--folder", folder, "--langs", "et", *SIZES[:3], 6), "must leave et messages to train on"),
        (("catalogs", out, "--folder", folder, *SIZES), "`--vocab-size` must be at most"),
        (("catalogs", out, "--folder", folder, "--test-size", 0), "`--test-size` must be at least 1, but is 0"),
        (("catalogs", out, "--packages", "no_such_package"), "must be installed packages"),
        (("text", raw, out, *SMALL, "--temperature", 0), "`--temperature` must be over 0, but is 0.0 instead"),
        (("text", tmp_path / "nowhere", out), "must be a folder of text files"),
    ):
        with pytest.raises(UserError, match=sentence):
            run(*args)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["locale", "raw"]


@pytest.mark.parametrize("number, status", [(signal.SIGINT, 1), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_an_interrupt_in_the_longest_step_acts_at_once_and_cleans_up(tmp_path, raw, number, status):
    draw = random.Random(1)
    for lang in ("en", "de"):  # about half a minute of SentencePiece
        words = ("".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=9)) for _ in range(300_000))
        (raw / f"train.en-de.{lang}").write_text("".join(f"{' '.join(islice(words, 10))}\n" for _ in range(30_000)))
    code = (
        "import sys\n"
        "from fairseq_mtmoe.cli import prepare\n"
        "from fairseq_mtmoe.data.corpora import build\n"
        "train = build.train_model_apart\n"
        "build.train_model_apart = lambda *args: print('training', flush=True) or train(*args)\n"
        "prepare.command(sys.argv[1:])\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, "text", raw, tmp_path / "out"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"training\n"
    assert (tmp_path / ".out.partial").exists()
    time.sleep(1.5)
    process.send_signal(number)
    assert process.wait(timeout=30) == status
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
