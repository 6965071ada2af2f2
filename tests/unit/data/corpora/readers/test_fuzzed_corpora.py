"""Thousands of damaged files: none crashes a reader, and none loses a line or segment that is not reported.

`FUZZ=10 pytest …` draws ten times as many.
"""

import bz2
import gzip
import json
import lzma
import os
import random
import re
from xml.etree import ElementTree

import pytest
from backports import zstd

from fairseq_mtmoe.errors import UserError
from tests.helpers.reading import all_lines, corpus, found_in, split_lines
from tests.unit.data.corpora.readers.test_packed_files import tar_of, zip_of

TIMES = int(os.environ.get("FUZZ", "1"))
PIECES = [
    *(b"\0", b"\xff", b"\n", b"\r", b"\t", b'"', b"<", b">", b"&x;", b"&", b"\\", b"{", b"}", b"ab", b" ", b"\xc3"),
    *(b"</tu>", b"<seg>", b"</seg>", b"<doc>", b"<!ENTITY a 'b'>", b"<!--", b"]]>", b"\xef\xbb\xbf", b"\xff\xfe"),
    *(b'\nmsgid "', b'\nmsgstr "', b"\\ud800", b"null", b"\n\n", b"#~ ", b"PK\3\4", bytes(8), b"\xff" * 4),
    *(b"<tu>", b"<src lang='en'>", b"</src>", b"<doc/>", b"srcset", b"msgid_plural "),
]
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


def damaged(draw, content):
    """The content with a piece put in, over or away, its end cut off, or a bit turned; once to three times."""
    for _ in range(draw.randrange(1, 4)):
        at, piece, kind = draw.randrange(len(content) + 1), draw.choice(PIECES), draw.randrange(5)
        if kind < 2:
            content = content[:at] + piece + content[at + kind * len(piece) :]
        elif kind == 2:
            content = content[:at] + content[at + draw.randrange(1, 40) :]
        elif kind == 3:
            content = content[:at]
        elif at < len(content):
            content = content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
    return content


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
    "moses": (400, LINES, LINES, {}, lambda content: max(number_of_lines(content), 12), 0),
    "tsv": (300, ROWS, None, {"fields": {"source": 2, "target": 3}}, number_of_lines, 10),
    "jsonl": (300, JSON, None, {}, number_of_lines, 4),
    "sgm": (350, SGM, SGM.replace(b"srcset", b"refset"), {}, lambda content: max(3, len(SEGMENT.findall(content))), 0),
    "po": (250, PO, None, {}, lambda content: 0, 0),
    "tmx": (350, TMX, None, {}, ".//tu", 0),
    "wmt": (350, WMT, None, {}, ".//doc/src//seg", 0),
}
PACKED = {
    **{"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress},
    "tar": lambda content: tar_of([("x", content), ("a", content)])[:3072],
    "zip": lambda content: zip_of([("a", content)]),
    "tgz": lambda content: gzip.compress(tar_of([("x", content), ("a", content)])),
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
    for _ in range(TIMES * tries):
        content = damaged(draw, whole)
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


@pytest.mark.parametrize("packer", PACKED)
def test_packed(tmp_path, packer):
    draw, whole = random.Random(packer), PACKED[packer](LINES)
    (tmp_path / "b").write_bytes(LINES)
    for _ in range(TIMES * 100):
        content = damaged(draw, whole)
        (tmp_path / "a").write_bytes(content)
        result = found(f"{tmp_path / 'a'}!a" if packer in ("tar", "zip", "tgz") else tmp_path / "a", tmp_path / "b")
        assert result is None or all_lines(*result) >= 12, content
