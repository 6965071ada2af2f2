"""Which faults of a file end a run and which cost their line, by `--on-bad-line` and by what the corpus is for."""

import gzip
from dataclasses import replace
from typing import get_args

import pytest

from fairseq_mtmoe.data.corpora.blocks import BAD_REASONS, HARMLESS, OF_FILES, BadLine, OnBadLine
from fairseq_mtmoe.data.corpora.readers import read
from fairseq_mtmoe.data.corpora.recipes.schema import Role
from fairseq_mtmoe.errors import UserError
from tests.helpers.reading import unpacked, written

NAMES = b"en\tde\n"
ROWS = b"".join(b"The sentence %d is here.\tDer Satz %d ist da.\n" % (number, number) for number in range(200))
UNIT = "<tu><tuv xml:lang='en'><seg>One</seg></tuv><tuv xml:lang='de'><seg>Eins</seg></tuv></tu>"
TMX = "<?xml version='1.0'?><tmx><body>{}</body></tmx>"
UNPAIRED = (
    b'<dataset id="x"><doc id="1"><src lang="en"><seg id="1">One</seg></src>'
    b'<ref lang="de"><seg id="1">Eins</seg><seg id="2">Zwei</seg></ref></doc></dataset>'
)


def tsv(wrong: bytes) -> bytes:
    return NAMES + ROWS + wrong + b"\n" + ROWS


ONE_FILE = {
    "encoding": tsv(b"caf\xe9\tx"),
    "nul": tsv(b"a\0\tx"),
    "empty": tsv(b""),
    "long": tsv(b"x" * 70_000 + b"\ty"),
    "columns": tsv(b"a\tb\tc"),
    "keys": b'{"en": "a", "de": "b"}\n{"en": "a"}\n',
    "untranslated": TMX.format(UNIT + UNIT.replace("'de'", "'fr'")).encode(),
    "unpaired": UNPAIRED,
    "truncated": gzip.compress(NAMES + ROWS, mtime=0)[:-300],
    "damaged": gzip.compress(NAMES + ROWS, mtime=0)[:-8] + bytes(8),
    "markup": TMX.format(UNIT * 100 + "<tu>").encode(),
    "charset": TMX.format(UNIT).replace("'1.0'", "'1.0' encoding='no-such'").encode(),
}  # fmt: skip
TWO_FILES = {"line ends": (b"a\rb\rc\r", b"1\n"), "unequal": (b"a\nb\nc\n", b"1\n2\n")}


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """By reason, a corpus with just that fault."""
    found = {reason: (content,) for reason, content in ONE_FILE.items()} | TWO_FILES
    folders = {reason: tmp_path_factory.mktemp("broken") for reason in found}
    return {reason: unpacked(written(folders[reason], *found[reason]), folders[reason]) for reason in found}


def result_of(files, on_bad_line):
    """The reasons that were counted; the sentence if the run ends."""
    try:
        return {item.reason for item in read(files, on_bad_line=on_bad_line) if isinstance(item, BadLine)}
    except UserError as error:
        return str(error)


@pytest.mark.parametrize("reason", BAD_REASONS)
def test_what_ends_a_run(reason, broken):
    files = broken[reason]
    passes = {"stop": reason in HARMLESS, "drop": reason not in {*OF_FILES, "unequal"}, "salvage": reason != "unequal"}
    if reason == "line ends":  # a file without lines is shorter than its translation, too
        files = replace(files, allow_unequal=True)
    for on_bad_line in get_args(OnBadLine):
        result = result_of(files, on_bad_line)
        if passes[on_bad_line]:
            assert result - {"unequal"} == {reason} - {"unequal"}
        elif reason == "unequal":
            assert result.startswith(f"`{files.paths[0]}`") and "(2), but has 3 lines" in result
            assert "first 2 lines of both with `--allow-unequal`" in result
            assert result_of(replace(files, allow_unequal=True), on_bad_line) == {reason}
        else:
            assert result.startswith(f"`{files.paths[0]}") and BAD_REASONS[reason] in result and result.count("\n") == 0
            assert f"`--on-bad-line {'salvage' if reason in OF_FILES else 'drop'}`" in result
    assert ("on it is not" in result_of(files, "stop")) == (reason in OF_FILES)


def test_evaluation_sets_are_read_whole_or_not_at_all(broken):
    for reason, files in broken.items():
        for on_bad_line in get_args(OnBadLine):
            result = result_of(replace(files, role=Role.test), on_bad_line)
            if reason in HARMLESS:
                assert result == {reason}
            else:
                assert "no line of validation and test sets is left out" in result and "--on-bad-line" not in result


SET = "<{0} setid='s' srclang='en' trglang='de'><doc docid='d'>{1}</doc></{0}>"
SEGMENTS = "<seg id='1'>One</seg><seg id='2'></seg><seg id='3'>Three</seg>"
WITH_EMPTY = {
    "moses": [b"One\n\nThree\n", b"Eins\nZwei\nDrei\n"],
    "tsv": [b"en\tde\nOne\tEins\n\tZwei\nThree\tDrei\n"],
    "sgm": [SET.format(kind, SEGMENTS).encode() for kind in ("srcset", "refset")],
}


@pytest.mark.parametrize("form", WITH_EMPTY)
def test_a_line_without_text_is_a_line_of_an_evaluation_set(form, tmp_path):
    files = written(tmp_path, *WITH_EMPTY[form])
    [block] = read(replace(files, role=Role.test))
    assert list(block.source) == ["One", "", "Three"] and len(block.target) == 3
    bad, left = read(files)
    assert bad.reason == "empty" and list(left.source) == ["One", "Three"]
