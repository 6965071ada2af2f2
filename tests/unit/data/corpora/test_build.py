import json
import os
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from fairseq_mtmoe.data.corpora import build as build_module
from fairseq_mtmoe.data.corpora.build import build, corpora_of, find_text_files
from fairseq_mtmoe.data.corpora.data_dir import content_hash
from fairseq_mtmoe.data.corpora.readers import parts_of, read
from fairseq_mtmoe.data.corpora.recipes.schema import BuildOptions
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.normalisation import normalise
from tests.helpers.catalogs import MESSAGES, translate
from tests.helpers.raw_corpora import text_of, tools_for, write_corpus
from tests.helpers.refused import refused

OPTIONS = BuildOptions(vocab_size=60, character_coverage=1.0)
TIERS = {"high": ["en-de"], "low": ["en-fr"]}
SPLITS = ("train", "valid", "test")


def build_from(raw, out, options=OPTIONS, tiers=TIERS, workers=None):
    """The data directory `out` of a folder of text."""
    files = find_text_files(raw)
    hashes = {path: content_hash(path) for of_pair in files.values() for sides in of_pair.values() for path in sides}
    with tools_for(out, workers) as tools:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return build(out, corpora_of(files, hashes), tiers, options, tools)


def lines(raw, name):
    return (raw / name).read_text().splitlines()


def write(raw, split, pair, source, target):
    write_corpus(raw, f"{split}.{pair}", source, target, pair)


def write_text_folder(raw):
    """Plain text of English to German and French."""
    splits = {"valid": MESSAGES[::14], "test": MESSAGES[1::14]}
    splits["train"] = [message for message in MESSAGES if message not in splits["valid"] + splits["test"]]
    for lang, step in (("de", 1), ("fr", 3)):
        for split, chosen in splits.items():
            messages = chosen[:: step if split == "train" else 1]
            write(raw, split, f"en-{lang}", messages, [translate(message, lang) for message in messages])
    (raw / "README.md").write_text("not a corpus")
    (raw / "train.en-de.origin").write_text("not a language of the pair")
    return raw


@pytest.fixture
def text_folder(tmp_path):
    return write_text_folder(tmp_path / "raw")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Text, and what is made of it."""
    folder = tmp_path_factory.mktemp("made")
    raw, out = write_text_folder(folder / "raw"), folder / "data"
    return raw, out, build_from(raw, out)


def test_fairseq_reads_back_every_sentence(made):
    raw, out, built = made
    for pair in ("en-de", "en-fr"):
        for split in SPLITS:
            for lang in pair.split("-"):
                name = f"{split}.{pair}.{lang}"
                assert text_of(out, name) == lines(raw, name)
                if split != "train":
                    assert lines(out / "raw", name) == lines(raw, name)
    assert json.loads((out / "tiers.json").read_text()) == {**TIERS, "mid": []}
    assert set(built["pairs"]) == {"en-de", "en-fr"} and built["pairs"]["en-fr"]["valid"] == 11
    assert not any(pair["dropped"] or pair["evaluation_sources_in_training"] for pair in built["pairs"].values())
    assert json.loads((out / "sizes.json").read_text())["train"] == {"en-de": [122], "en-fr": [41]}


def test_text_is_taken_as_it_is(tmp_path, text_folder):
    """Nothing that `prepare corpora` leaves out goes but empty training pairs; evaluation text keeps all lines."""
    source = ["Same as the target", "…", "a", "Twice", "Twice", lines(text_folder, "test.en-de.en")[0], "", "\x07", "x"]
    target = ["Same as the target", "?!", "b " * 30_000, "zwei", "zwei", "ein Test", "leer", "auch", " \u00ad "]
    write(text_folder, "train", "en-de", source, target)
    write(text_folder, "valid", "en-de", ["", "a\u00a0b\x00", "  "], ["eins", "", ""])
    all_of_it = BuildOptions(vocab_size=60, character_coverage=1.0, temperature=1.0)
    built = build_from(text_folder, tmp_path / "data", all_of_it, {})
    kept = list(zip(source[:6], [normalise(text) for text in target[:6]], strict=True))
    assert list(zip(*(text_of(tmp_path / "data", f"train.en-de.{lang}") for lang in ("en", "de")), strict=True)) == kept
    assert {name: pair["dropped"] for name, pair in built["pairs"].items()} == {"en-de": {"empty": 3}, "en-fr": {}}
    assert lines(tmp_path / "data" / "raw", "valid.en-de.en") == ["", "a b", ""]
    assert lines(tmp_path / "data" / "raw", "valid.en-de.de") == ["eins", "", ""]
    assert len(text_of(tmp_path / "data", "valid.en-de.de")) == 3


def test_what_is_changed_and_unknown_is_counted_by_file(tmp_path, text_folder):
    text = "\ufeffone\x00 \x07\ntwo\x85lines\x0c of e\u0301\n three  \u00a0words \r\n"
    (text_folder / "test.en-de.en").write_text(text + "x\n" * 8)
    write(text_folder, "valid", "en-de", ["Open ☃"], ["☃ ☃"])
    report = build_from(text_folder, tmp_path / "data")
    tokens = report["pairs"]["en-de"]["tokens"]["valid"]
    assert (tokens["en"]["unknown"], tokens["de"]["unknown"]) == (1, 2)
    changed = {name: of for name, of in report["files"].items() if any(of.values())}
    assert changed == {"test.en-de.en": {"removed": 3, "breaks": 2, "respelled": 1}} and len(report["files"]) == 12


def test_shards_share_out_the_training_data(tmp_path, text_folder):
    out = tmp_path / "data"
    build_from(text_folder, out, BuildOptions(vocab_size=60, character_coverage=1.0, shards=3))
    shards = [out / f"shard{index}" for index in range(3)]
    lists = ["lang_pairs.txt", "langs.txt", "spm.model"]
    assert sorted(path.name for path in out.iterdir()) == sorted(["shard0", "shard1", "shard2", *lists])
    parts = [text_of(shard, "train.en-de.de") for shard in shards]
    assert [len(part) for part in parts] == [41, 41, 40]
    dealt = [part[index] for index in range(41) for part in parts if index < len(part)]
    assert dealt == lines(text_folder, "train.en-de.de")
    assert [len(list(shard.glob("valid.*"))) for shard in shards] == [8, 0, 0]
    assert (shards[2] / "langs.txt").read_text() == "de\nen\nfr\n"
    assert (shards[2] / "lang_pairs.txt").read_text() == "en-de,en-fr\n"
    for name in (*lists, "dict.en.txt", "dict.fr.txt", "tiers.json"):
        assert len({(shard / name).read_bytes() for shard in shards}) == 1


def test_too_little_text(tmp_path, text_folder):
    with pytest.raises(UserError, match="en-fr must have at least 42 train pairs, but has 41"):
        build_from(text_folder, tmp_path / "data", BuildOptions(shards=42))
    write(text_folder, "test", "en-fr", [], [])
    with pytest.raises(UserError, match="en-fr must have at least 1 test pairs, but has 0"):
        build_from(text_folder, tmp_path / "data")
    (text_folder / "train.en-fr.fr").write_text("\n" * 41)
    with refused("train.en-fr.en"):
        build_from(text_folder, tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())


def test_files_that_do_not_fit_together(tmp_path, text_folder):
    path = text_folder / "test.en-fr.fr"
    wrong = {b"un\n": "test.en-fr.en", b"un\n" * 12: path.name, b"un\n\xff\n": path.name, b"un\rdeux": path.name}
    for content, name in wrong.items():
        path.write_bytes(content)
        with refused(name):
            build_from(text_folder, tmp_path / "data")


def test_tiers_are_named_or_by_size(tmp_path):
    raw = tmp_path / "raw"
    for lang, size in {"aa": 64, "bb": 32, "cc": 8, "dd": 7, "ee": 2}.items():
        for split in SPLITS:
            write(raw, split, f"en-{lang}", *([f"{lang} {n % 9}" for n in range(size)] for _ in range(2)))
    some = {"high": ["en-ee"], "low": ["bb", "zz"]}
    for named, expected in (
        ({}, {"high": ["en-aa", "en-bb"], "mid": ["en-cc"], "low": ["en-dd", "en-ee"]}),
        (some, {"high": ["en-aa", "en-ee"], "mid": ["en-cc"], "low": ["en-bb", "en-dd"]}),
    ):
        build_from(raw, tmp_path / "data", BuildOptions(vocab_size=20, character_coverage=1.0), named)
        assert json.loads((tmp_path / "data" / "tiers.json").read_text()) == expected


def test_sources_seen_in_training_of_any_pair_are_counted(tmp_path):
    raw, expected = tmp_path / "raw", {}
    for pair, *sources, seen in (
        ("en-aa", ["One"], ["two"], ["THREE!", "x"], (1, {"en-bb": 1})),
        ("en-bb", ["three"], ["four"], ["one."], (1, {"en-aa": 1, "en-cc": 1})),
        ("de-bb", ["four"], ["one"], ["two"], (0, {})),
        ("en-cc", ["ONE"], ["One"], ["Three"], (2, {"en-aa": 1, "en-bb": 1, "en-cc": 1})),
        ("bb-dd", ["five"], ["FOUR de"], ["three bb", "six"], (1, {"en-bb": 1})),
    ):
        expected[pair] = seen
        for split, source in zip(SPLITS, sources, strict=True):
            write(raw, split, pair, source, [f"{text} {pair[-2:]}" for text in source])
    pairs = build_from(raw, tmp_path / "data", BuildOptions(vocab_size=22, character_coverage=1.0), {})["pairs"]
    names = ("evaluation_sources_in_training", "found_in_training_of")
    assert {pair: tuple(about[name] for name in names) for pair, about in pairs.items()} == expected


def training_corpus(folder):
    return corpora_of(find_text_files(folder), defaultdict(str))[0].files


def test_a_fault_in_a_part_is_where_the_file_has_it(text_folder):
    path = text_folder / "train.en-de.de"
    path.write_bytes(path.read_bytes()[:1000] + b"\xff\n")
    with pytest.raises(UserError, match="is not at byte 1000"):
        [list(read(part)) for part in parts_of(training_corpus(text_folder), 7, 1 << 20)]


def test_every_line_is_read_and_only_line_feeds_end_one(text_folder):
    text = "one\u2028two\x0bthree\u0085four\rfive\r\nsix\0\n\n" + "x" * 200_000
    (text_folder / "train.en-de.en").write_bytes(text.encode())
    (text_folder / "train.en-de.de").write_bytes(b"eins\r\nzwei\rdrei\nleer\n\n")
    [block] = read(training_corpus(text_folder))
    assert list(block.source) == ["one\u2028two\x0bthree\x85four\rfive", "six\0", "", "x" * 200_000]
    assert list(block.target) == ["eins", "zwei\rdrei", "leer", ""]


def test_lone_carriage_returns_are_found(text_folder, monkeypatch):
    monkeypatch.setattr(build_module, "_CHUNK", 4)
    path = text_folder / "some.txt"
    contents = {b"abc\r\nd": False, b"abc\rde": True, b"abc\r": True, b"abcd\r\r\n": True, b"abc\n": False}
    for content, expected in contents.items():
        path.write_bytes(content)
        assert build_module.has_lone_carriage_return(path) == expected


def test_bad_folders(tmp_path, text_folder):
    (tmp_path / "bare").mkdir()
    with refused("bare"):
        find_text_files(tmp_path / "bare")
    path = text_folder / "valid.en-fr.fr"
    for make in (Path.unlink, os.mkfifo):
        make(path)
        with refused(path.name):
            find_text_files(text_folder)


def test_tiers_with_and_without_ranks(tmp_path):
    path = tmp_path / "tiers.json"
    path.write_text(json.dumps({"T1-high": ["de"], "low": ["et"], "T4-tiny": ["xh"]}))
    assert build_module.read_ranked_tiers(path) == {"high": ["de"], "low": ["et", "xh"]}
    path.write_text('{"high": "de"}')
    with refused("tiers.json"):
        build_module.read_ranked_tiers(path)
