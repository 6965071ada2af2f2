"""Hundreds of damaged files of each format: no line or segment is lost that is not reported."""

import json
import random
import re
from xml.etree import ElementTree

import pytest

from fairseq_mtmoe.errors import UserError
from tests.fuzz.odd_values import damage
from tests.helpers.reading import all_lines, corpus, found_in, split_lines

NAMESPACES = (27, 28, 29)  # expat's errors of prefixes, of which readers know nothing
SEGMENT = re.compile(rb"<seg\b(?![\x80-\xff])[^<>]*>", re.IGNORECASE)

LINES = b"".join("line %d ä\n".encode() % number for number in range(12))
ROWS = b"".join("1\tline %d ä\tZeile\n".encode() % number for number in range(12))
JSON = b"".join(json.dumps({"en": f"a {n}", "de": "ü"}, ensure_ascii=False).encode() + b"\n" for n in range(8))
TMX = """<?xml version="1.0" encoding="UTF-8"?><tmx version="1.4"><header/><body>
<tu><tuv xml:lang="en"><seg>One &amp; <hi>two</hi></seg></tuv><tuv xml:lang="de"><seg>Ä <ph>x</ph></seg></tuv></tu>
<tu><tuv lang="en"><seg>Three</seg></tuv><tuv lang="de"><seg>Drei</seg></tuv></tu></body></tmx>""".encode()
WMT = b"""<dataset id="x"><doc id="1"><src lang="en"><p><seg id="1">One</seg><seg id="2">Two</seg></p></src>
<ref lang="de" translator="A"><p><seg id="1">Eins</seg><seg id="2">Zwei</seg></p></ref></doc></dataset>"""
SGM = b"""<srcset setid="s"><doc docid="a"><seg id="1">One & <b></seg><seg id="2">Two</seg></doc>
<doc docid="b"><p><seg id="1">Three \xc3\xa4</seg></p></doc></srcset>"""
PO = b"""msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"

#, c-format
msgid "one"
msgid_plural "ones"
msgstr[0] "eins"
msgstr[1] "ein\\"e"

msgctxt "x"
msgid "two"
msgstr ""
"zwei"
"""


def number_of_lines(content):
    """None where a byte order mark says that lines end otherwise; the mark of UTF-8 is no line."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return 0
    return len(split_lines(content.removeprefix(b"\xef\xbb\xbf")))


def check_xml(content, result, units):
    try:
        number = len(ElementTree.fromstring(content).findall(units))
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        assert getattr(error, "code", None) in NAMESPACES or result[1][-1].reason in ("markup", "charset")
        return
    if not result[1] or result[1][-1].reason != "markup":
        assert all_lines(*result) >= number


# By format: tries, the whole file, the other side's, what a recipe says, how many units there must be, and how many
# lines a file must have that can say which columns or keys it has.
LEAST = {
    "moses": (200, LINES, LINES, {}, lambda content: max(number_of_lines(content), 12), 0),
    "tsv": (150, ROWS, None, {"fields": {"source": 2, "target": 3}}, number_of_lines, 10),
    "jsonl": (150, JSON, None, {}, number_of_lines, 4),
    "sgm": (200, SGM, SGM.replace(b"srcset", b"refset"), {}, lambda content: max(3, len(SEGMENT.findall(content))), 0),
    "po": (150, PO, None, {}, lambda content: 0, 0),
    "tmx": (200, TMX, None, {}, ".//tu", 0),
    "wmt": (200, WMT, None, {}, ".//doc/src//seg", 0),
}


def found(*paths, **settings):
    """What is found; None where a sentence says that it cannot be read."""
    try:
        return found_in(corpus(*paths, **settings), block=7)
    except UserError as error:
        assert str(error).endswith(".") and "`" in str(error)
        return None


@pytest.mark.parametrize("form", LEAST)
def test_every_line_and_segment_is_accounted_for(tmp_path, form):
    tries, whole, other, said, least, lines = LEAST[form]
    paths = [tmp_path / "a"] + ([tmp_path / "b"] if other else [])
    draw = random.Random(form)
    for path in paths[1:]:
        path.write_bytes(other)
    for _ in range(tries):
        content = damage(draw, whole)
        paths[0].write_bytes(content)
        result = found(*paths, format=form, **said)
        try:
            is_archive = content.startswith(b"PK")  # of which a member must be named
            assert result or is_archive or content.count(b"\n") < lines
            if result and isinstance(least, str):
                check_xml(content, result, least)
            elif result and not is_archive:
                assert all_lines(*result) >= least(content)
                assert form in ("sgm", "po") or not number_of_lines(content) or all_lines(*result) == least(content)
        except BaseException as error:
            error.add_note(f"content: {content!r}")
            raise
