import json
import os
import shutil
from collections import defaultdict

import numpy as np
import pytest
import sentencepiece
from fairseq.data import Dictionary, data_utils

from fairseq_mtmoe.data.corpora import build as build_module
from fairseq_mtmoe.data.corpora.build import BuildOptions, build, corpora_of, find_text_files
from fairseq_mtmoe.data.corpora.cleaning.characters import normalise
from fairseq_mtmoe.data.corpora.data_dir import content_hash
from fairseq_mtmoe.data.corpora.readers import parts_of, read
from fairseq_mtmoe.errors import UserError
from tests.helpers.raw_corpora import tools_for

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
    for lang, text in zip(pair.split("-"), (source, target), strict=True):
        (raw / f"{split}.{pair}.{lang}").write_text("".join(f"{line}\n" for line in text))


def decoded(folder, name):
    """The text of a binarized file, read as fairseq reads it."""
    dictionary = Dictionary.load(str(folder / f"dict.{name.split('.')[-1]}.txt"))
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    dataset = data_utils.load_indexed_dataset(str(folder / name), dictionary)
    assert all(sentence[-1] == dictionary.eos() for sentence in dataset)
    return [model.decode(dictionary.string(sentence).split()) for sentence in dataset]


@pytest.fixture(scope="module")
def made(tmp_path_factory, text_folder_once):
    """Text, and what is made of it."""
    out = tmp_path_factory.mktemp("made") / "data"
    return text_folder_once, out, build_from(text_folder_once, out)


def test_fairseq_reads_back_every_sentence(made):
    raw, out, built = made
    for pair in ("en-de", "en-fr"):
        for split in SPLITS:
            for lang in pair.split("-"):
                name = f"{split}.{pair}.{lang}"
                assert decoded(out, name) == lines(raw, name)
                if split != "train":
                    assert lines(out / "raw", name) == lines(raw, name)
    assert json.loads((out / "tiers.json").read_text()) == {**TIERS, "mid": []}
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
    assert list(zip(*(decoded(tmp_path / "data", f"train.en-de.{lang}") for lang in ("en", "de")), strict=True)) == kept
    assert {name: pair["dropped"] for name, pair in built["pairs"].items()} == {"en-de": {"empty": 3}, "en-fr": {}}
    assert lines(tmp_path / "data" / "raw", "valid.en-de.en") == ["", "a b", ""]
    assert lines(tmp_path / "data" / "raw", "valid.en-de.de") == ["eins", "", ""]
    assert len(decoded(tmp_path / "data", "valid.en-de.de")) == 3


def test_what_is_changed_and_unknown_is_counted_by_file(tmp_path, text_folder):
    text = "\ufeffone\x00 \x07\ntwo\x85lines\x0c of e\u0301\n three  \u00a0words \r\n"
    (text_folder / "test.en-de.en").write_text(text + "x\n" * 8)
    write(text_folder, "valid", "en-de", ["Open ☃"], ["☃ ☃"])
    report = build_from(text_folder, tmp_path / "data")
    tokens = report["pairs"]["en-de"]["tokens"]["valid"]
    assert (tokens["en"]["unknown"], tokens["de"]["unknown"]) == (1, 2)
    changes = report["files"]
    none = {"removed": 0, "breaks": 0, "respelled": 0}
    assert changes.pop("test.en-de.en") == {"removed": 3, "breaks": 2, "respelled": 1}
    assert len(changes) == 11 and all(found == none for found in changes.values())


def test_shards_share_out_the_training_data(tmp_path, text_folder):
    out = tmp_path / "data"
    build_from(text_folder, out, BuildOptions(vocab_size=60, character_coverage=1.0, shards=3))
    shards = [out / f"shard{index}" for index in range(3)]
    lists = ["lang_pairs.txt", "langs.txt", "spm.model"]
    assert sorted(path.name for path in out.iterdir()) == sorted(["shard0", "shard1", "shard2", *lists])
    assert all((out / name).read_bytes() == (shards[2] / name).read_bytes() for name in lists)
    for lang in ("en", "de"):
        parts = [decoded(shard, f"train.en-de.{lang}") for shard in shards]
        assert [len(part) for part in parts] == [41, 41, 40]
        dealt = [part[index] for index in range(41) for part in parts if index < len(part)]
        assert dealt == lines(text_folder, f"train.en-de.{lang}")
    assert [len(list(shard.glob("valid.*"))) for shard in shards] == [8, 0, 0]
    assert (shards[2] / "langs.txt").read_text() == "de\nen\nfr\n"
    assert (shards[2] / "lang_pairs.txt").read_text() == "en-de,en-fr\n"
    for name in ("spm.model", "dict.en.txt", "dict.fr.txt", "tiers.json"):
        assert len({(shard / name).read_bytes() for shard in shards}) == 1


def test_too_little_text(tmp_path, text_folder):
    with pytest.raises(UserError, match="en-fr must have at least 42 train pairs, but has 41"):
        build_from(text_folder, tmp_path / "data", BuildOptions(shards=42))
    write(text_folder, "test", "en-fr", [], [])
    with pytest.raises(UserError, match="en-fr must have at least 1 test pairs, but has 0"):
        build_from(text_folder, tmp_path / "data")
    (text_folder / "train.en-fr.fr").write_text("\n" * 41)
    with pytest.raises(UserError, match=r"train\.en-fr\.en` and its translation must have a sentence, but have none"):
        build_from(text_folder, tmp_path / "data")
    assert not list((tmp_path / "data").iterdir())


def test_files_that_do_not_fit_together(tmp_path, text_folder):
    path = text_folder / "test.en-fr.fr"
    for content, sentence in (
        ("un\n", r"test\.en-fr\.en` must have as many lines as `.*test\.en-fr\.fr` \(1\), but has 11 lines; mend it"),
        (
            "un\n" * 12,
            r"test\.en-fr\.fr` must have as many lines as `.*test\.en-fr\.en` \(11\), but has 12 lines; mend it",
        ),
        (b"un\n\xff\n", "must be UTF-8 text, but is not at byte 3"),
        ("un\rdeux", "must have lines that end in line feeds, but has carriage returns alone"),
    ):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        with pytest.raises(UserError, match=sentence):
            build_from(text_folder, tmp_path / "data")


def test_tiers_are_named_or_by_size(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    for lang, size in {"aa": 64, "bb": 32, "cc": 8, "dd": 7, "ee": 2}.items():
        for split in SPLITS:
            write(raw, split, f"en-{lang}", *([f"{lang} {n % 9}" for n in range(size)] for _ in range(2)))
    found = []
    for number, named in enumerate(({}, {"high": ["en-ee"], "low": ["bb", "zz"]})):
        options = BuildOptions(vocab_size=20, character_coverage=1.0)
        build_from(raw, tmp_path / str(number), options, named)
        found.append(json.loads((tmp_path / str(number) / "tiers.json").read_text()))
    assert found == [
        {"high": ["en-aa", "en-bb"], "mid": ["en-cc"], "low": ["en-dd", "en-ee"]},
        {"high": ["en-aa", "en-ee"], "mid": ["en-cc"], "low": ["en-bb", "en-dd"]},
    ]


def test_sources_seen_in_training_of_any_pair_are_counted(tmp_path):
    raw = tmp_path / "raw"
    raw.mkdir()
    for pair, train, valid, test in (
        ("en-aa", ["One"], ["two"], ["THREE!", "x"]),
        ("en-bb", ["three"], ["four"], ["one."]),
        ("de-bb", ["four"], ["one"], ["two"]),
        ("en-cc", ["ONE"], ["One"], ["Three"]),
    ):
        for split, source in (("train", train), ("valid", valid), ("test", test)):
            write(raw, split, pair, source, [f"{text} {pair[-2:]}" for text in source])
    pairs = build_from(raw, tmp_path / "data", BuildOptions(vocab_size=22, character_coverage=1.0), {})["pairs"]
    names = ("evaluation_sources_in_training", "found_in_training_of")
    assert {pair: tuple(about[name] for name in names) for pair, about in pairs.items()} == {
        "en-aa": (1, {"en-bb": 1}),
        "en-bb": (1, {"en-aa": 1, "en-cc": 1}),
        "de-bb": (0, {}),
        "en-cc": (2, {"en-aa": 1, "en-bb": 1, "en-cc": 1}),
    }


# ---- the folder of text ----


def pairs_of(folder, name):
    """The pairs of a corpus as it is read."""
    [corpus] = [one for one in corpora_of(find_text_files(folder), defaultdict(str)) if one.files.name == name]
    return [pair for block in read(corpus.files, 7) for pair in zip(block.source, block.target, strict=True)]


def test_finds_every_pair_of_a_folder(text_folder):
    (text_folder / "README.md").write_text("not a corpus")
    (text_folder / "train.en-de.origin").write_text("not a language of the pair")
    corpora = corpora_of(find_text_files(text_folder), defaultdict(str))
    names = [(one.files.name, one.pair, one.role.name, len(pairs_of(text_folder, one.files.name))) for one in corpora]
    assert names == [
        *(("train.en-de", "en-de", "train", 122), ("valid.en-de", "en-de", "valid", 11)),
        *(("test.en-de", "en-de", "test", 11), ("train.en-fr", "en-fr", "train", 41)),
        *(("valid.en-fr", "en-fr", "valid", 11), ("test.en-fr", "en-fr", "test", 11)),
    ]
    assert pairs_of(text_folder, "valid.en-de")[0] == ("Open the file", "nepod ehtd elifd")
    assert pairs_of(text_folder, "test.en-de")[0][0] == "Open the folder"


def test_parts_are_the_whole(text_folder):
    """Each part its lines, and a fault in the place where the file has it."""
    sources = [f"source {number}\r {'x' * (number % 13)}" for number in range(50)]
    for lang, lines in (("en", sources), ("de", [source.upper() for source in sources])):
        (text_folder / f"train.en-de.{lang}").write_bytes("\r\n".join(lines).encode())

    def read_in_parts():
        [corpus, *_] = corpora_of(find_text_files(text_folder), defaultdict(str))
        parts = parts_of(corpus.files, 7, 1 << 20)
        assert len(parts) == 8
        blocks = [block for part in parts for block in read(part)]
        assert np.concatenate([block.lines for block in blocks]).tolist() == list(range(1, 51))
        return [pair for block in blocks for pair in zip(block.source, block.target, strict=True)]

    assert read_in_parts() == pairs_of(text_folder, "train.en-de") == [(source, source.upper()) for source in sources]
    content = (text_folder / "train.en-de.de").read_bytes()
    for damaged, sentence in (
        (content.replace(b"SOURCE 40", b"SOURCE\xff40"), f"is not at byte {content.index(b'SOURCE 40') + 6}"),
        (
            content + b"\nmehr",
            r"de` must have as many lines as `.*train\.en-de\.en` \(50\), but has 51 lines",
        ),
    ):
        (text_folder / "train.en-de.de").write_bytes(damaged)
        with pytest.raises(UserError, match=sentence):
            read_in_parts()


def test_every_line_is_read_and_only_line_feeds_end_one(text_folder):
    text = "one\u2028two\x0bthree\u0085four\rfive\r\nsix\0\n\n" + "x" * 200_000
    (text_folder / "train.en-de.en").write_bytes(text.encode())
    (text_folder / "train.en-de.de").write_bytes(b"eins\r\nzwei\rdrei\nleer\n\n")
    sources = ["one\u2028two\x0bthree\x85four\rfive", "six\0", "", "x" * 200_000]
    assert pairs_of(text_folder, "train.en-de") == list(zip(sources, ["eins", "zwei\rdrei", "leer", ""], strict=True))


def test_lone_carriage_returns_are_found(text_folder, monkeypatch):
    monkeypatch.setattr(build_module, "_CHUNK", 4)
    path = text_folder / "some.txt"
    for content, expected in (
        (b"abc\r\nd", False),
        (b"abc\rde", True),
        (b"abc\r", True),
        (b"abcd\r\r\n", True),
        (b"abc\n", False),
    ):
        path.write_bytes(content)
        assert build_module.has_lone_carriage_return(path) == expected


def test_bad_folders(tmp_path, text_folder):
    with pytest.raises(UserError, match="must be a folder of text files"):
        find_text_files(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match="must hold text files"):
        find_text_files(tmp_path / "bare")
    (text_folder / "valid.en-fr.fr").unlink()
    with pytest.raises(UserError, match=r"valid\.en-fr\.fr` is missing: en-fr needs both sides"):
        find_text_files(text_folder)
    os.mkfifo(text_folder / "valid.en-fr.fr")
    with pytest.raises(UserError, match=r"valid\.en-fr\.fr` must be a text file, but is a pipe instead"):
        find_text_files(text_folder)


def test_tiers_with_and_without_ranks(tmp_path):
    path = tmp_path / "tiers.json"
    path.write_text(json.dumps({"T1-high": ["de"], "low": ["et"], "T4-tiny": ["xh"]}))
    assert build_module.read_ranked_tiers(path) == {"high": ["de"], "low": ["et", "xh"]}
    for content, sentence in (
        ("{", "must be a JSON file"),
        ('{"high": "de"}', "must map high, mid and low to lists"),
        ('{"gigantic": ["de"]}', r"one of high, mid, low, but is 'gigantic' instead"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=sentence):
            build_module.read_ranked_tiers(path)
    path.unlink()
    with pytest.raises(UserError, match="must be a file of tiers, but there is none"):
        build_module.read_ranked_tiers(path)
