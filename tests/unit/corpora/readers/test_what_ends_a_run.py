"""Which faults of a file cost their line, and which end a run."""

from dataclasses import replace

import pytest

from fairseq_mtmoe.corpora.blocks import BAD_REASONS, HARMLESS, BadLine
from fairseq_mtmoe.corpora.readers import read
from fairseq_mtmoe.corpora.recipes.schema import Role
from tests.helpers.reading import written
from tests.helpers.refused import refused

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
    "long": tsv("ä".encode() * 330_000 + b"\ty"),
    "columns": tsv(b"a\tb\tc"),
    "keys": b'{"en": "a", "de": "b"}\n{"en": "a"}\n',
    "untranslated": TMX.format(UNIT + UNIT.replace("'de'", "'fr'")).encode(),
    "unpaired": UNPAIRED,
}


@pytest.mark.parametrize("reason", BAD_REASONS)
def test_a_bad_line_costs_itself_in_training_text_and_ends_the_run_in_evaluation_sets(reason, tmp_path):
    files = written(tmp_path, ONE_FILE[reason])
    assert {item.reason for item in read(files) if isinstance(item, BadLine)} == {reason}
    evaluation = replace(files, role=Role.test)
    if reason == HARMLESS:
        assert {item.reason for item in read(evaluation) if isinstance(item, BadLine)} == {reason}
    else:
        with refused("a"):
            list(read(evaluation))


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
