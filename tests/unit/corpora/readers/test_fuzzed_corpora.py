"""Hundreds of damaged files of each format: no line or segment is lost that is not reported."""

import json
import random
import re
from xml.etree import ElementTree

import pytest

from fairseq_mtmoe.core.errors import UserError
from tests.helpers.damage import damage
from tests.helpers.reading import found_in, split_lines, written
from tests.unit.corpora.readers.test_markup import REFERENCE, SOURCE, TMX, WMT
from tests.unit.corpora.readers.test_message_catalogs import PO

SEGMENT = re.compile(rb"<seg\b(?![\x80-\xff])[^<>]*>", re.IGNORECASE)

LINES = b"".join("line %d ä\n".encode() % number for number in range(12))
ROWS = b"".join("1\tline %d ä\tZeile\n".encode() % number for number in range(12))
JSON = b"".join(json.dumps({"en": f"a {n}", "de": "ü"}, ensure_ascii=False).encode() + b"\n" for n in range(8))


def number_of_lines(content):
    """The mark of UTF-8 is no line."""
    return len(split_lines(content.removeprefix(b"\xef\xbb\xbf")))


def segments_in(path):
    """Return a function that counts the elements of an XML file that has no error."""
    return lambda content: len(ElementTree.fromstring(content).findall(path))


# By format: tries, the whole file, the other side's, what a recipe says, how many units there must be, and how many
# lines a file must have that can say which columns or keys it has.
LEAST = {
    "moses": (200, LINES, LINES, {}, number_of_lines, 0),
    "tsv": (150, ROWS, None, {"fields": {"source": 2, "target": 3}}, number_of_lines, 10),
    "jsonl": (150, JSON, None, {}, number_of_lines, 4),
    "sgm": (200, SOURCE, REFERENCE, {}, lambda content: len(SEGMENT.findall(content)), 0),
    "po": (150, PO, None, {"target": "ru"}, lambda content: 0, 0),
    "tmx": (200, TMX, None, {}, segments_in(".//tu"), 0),
    "wmt": (200, WMT, None, {}, segments_in(".//doc/src//seg"), 0),
}


@pytest.mark.parametrize("form", LEAST)
def test_every_line_and_segment_is_accounted_for_or_the_file_is_named(tmp_path, form):
    tries, whole, other, said, least, lines = LEAST[form]
    draw = random.Random(form)
    for _ in range(tries):
        content = damage(draw, whole if isinstance(whole, bytes) else whole.encode())
        files = written(tmp_path, content, *([other] if other else []), format=form, **said)
        try:
            result = found_in(files, block=7)
        except UserError as error:  # a sentence that says that it cannot be read
            assert str(error).endswith(".") and "`" in str(error)
            result = None
        try:
            is_archive = content.startswith(b"PK")  # of which a member must be named
            if result and not is_archive:
                number = len(result[0]) + len(result[1])
                assert number >= least(content)
                assert form not in ("moses", "tsv", "jsonl") or number == least(content)
            elif form in ("tsv", "jsonl"):
                assert is_archive or content.count(b"\n") < lines
            elif form == "moses":
                assert is_archive or number_of_lines(content) != 12 or b"\n" not in content
        except BaseException as error:
            error.add_note(f"content: {content!r}")
            raise
