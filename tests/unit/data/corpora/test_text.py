import json
import os
from collections import defaultdict

import numpy as np
import pytest

from fairseq_mtmoe.data.corpora import build
from fairseq_mtmoe.data.corpora.build import corpora_of, find_text_files, has_lone_carriage_return, read_ranked_tiers
from fairseq_mtmoe.data.corpora.readers import read
from fairseq_mtmoe.data.corpora.readers.splitting import parts_of
from fairseq_mtmoe.errors import UserError


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


def test_every_line_is_read(text_folder):
    (text_folder / "train.en-de.en").write_bytes(b"one\0two\n\nthree\r\n" + b"x" * 200_000)
    (text_folder / "train.en-de.de").write_bytes(b"\xef\xbb\xbfeins\nleer\n \n\n")
    read_pairs = [("one\0two", "\ufeffeins"), ("", "leer"), ("three", " "), ("x" * 200_000, "")]
    assert pairs_of(text_folder, "train.en-de") == read_pairs


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


def test_only_line_feeds_end_a_line(text_folder):
    (text_folder / "train.en-de.en").write_bytes("one\u2028two\x0bthree\u0085four\rfive\r\nsix".encode())
    (text_folder / "train.en-de.de").write_bytes(b"eins\r\nzwei\rdrei")
    sources = ["one\u2028two\x0bthree\x85four\rfive", "six"]
    assert pairs_of(text_folder, "train.en-de") == list(zip(sources, ["eins", "zwei\rdrei"], strict=True))


def test_lone_carriage_returns_are_found(text_folder, monkeypatch):
    monkeypatch.setattr(build, "_CHUNK", 4)
    path = text_folder / "some.txt"
    for content, expected in (
        (b"abc\r\nd", False),
        (b"abc\rde", True),
        (b"abc\r", True),
        (b"abcd\r\r\n", True),
        (b"abc\n", False),
    ):
        path.write_bytes(content)
        assert has_lone_carriage_return(path) == expected


def test_bad_folders(tmp_path, text_folder):
    with pytest.raises(UserError, match="must be a folder of text files"):
        find_text_files(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match="must hold text files"):
        find_text_files(tmp_path / "bare")
    (text_folder / "valid.en-fr.fr").unlink()
    with pytest.raises(UserError, match=r"valid\.en-fr\.fr` is missing: en-fr needs both sides"):
        find_text_files(text_folder)


def test_what_is_no_file_is_one_sentence(text_folder):
    path = text_folder / "valid.en-fr.fr"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UserError, match=r"valid\.en-fr\.fr` must be a text file, but is a pipe instead"):
        find_text_files(text_folder)


def test_tiers_with_and_without_ranks(tmp_path):
    (tmp_path / "tiers.json").write_text(json.dumps({"T1-high": ["de"], "low": ["et"], "T4-tiny": ["xh"]}))
    assert read_ranked_tiers(tmp_path / "tiers.json") == {"high": ["de"], "low": ["et", "xh"]}


@pytest.mark.parametrize(
    "content, sentence",
    [
        ("{", "must be a JSON file"),
        ("[]", "must map high, mid and low to lists"),
        ('{"high": "de"}', "must map high, mid and low to lists"),
        ('{"gigantic": ["de"]}', r"one of high, mid, low, but is 'gigantic' instead"),
    ],
)
def test_bad_tiers(tmp_path, content, sentence):
    (tmp_path / "tiers.json").write_text(content)
    with pytest.raises(UserError, match=sentence):
        read_ranked_tiers(tmp_path / "tiers.json")
    with pytest.raises(UserError, match="must be a file of tiers, but there is none"):
        read_ranked_tiers(tmp_path / "none.json")
