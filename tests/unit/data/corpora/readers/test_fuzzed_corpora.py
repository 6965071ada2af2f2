"""5,000 damaged files: none crashes a reader, and none loses a line or segment that is not reported.

They are files on the disk, in under 15 seconds of one core. `FUZZ=10 pytest …` draws ten times as many.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import re
import struct
import tarfile
import zipfile
from xml.etree import ElementTree

import pytest
from backports import zstd
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.errors import UserError
from tests.helpers.reading import all_lines, corpus, found_in, split_lines

TIMES = int(os.environ.get("FUZZ", "1"))
INPUTS = 50  # of an example of hypothesis's, which costs more than reading them
STEP = struct.Struct(">BHB")  # of damage: what, where, with which piece
MOST_STEPS = 3
PIECES = [
    *(b"\0", b"\xff", b"\n", b"\r", b"\t", b'"', b"<", b">", b"&x;", b"&", b"\\", b"{", b"}", b"ab", b" ", b"\xc3"),
    *(b"</tu>", b"<seg>", b"</seg>", b"<doc>", b"<!ENTITY a 'b'>", b"<!--", b"]]>", b"\xef\xbb\xbf", b"\xff\xfe"),
    *(b'\nmsgid "', b'\nmsgstr "', b"\\ud800", b"null", b"\n\n", b"#~ ", b"PK\3\4", bytes(8), b"\xff" * 4),
    *(b"<tu>", b"<src lang='en'>", b"</src>", b"<doc/>", b"srcset", b"msgid_plural "),
]
DAMAGE = st.binary(min_size=INPUTS * (1 + MOST_STEPS * STEP.size), max_size=INPUTS * (1 + MOST_STEPS * STEP.size))


def damaged(content: bytes, drawn: bytes) -> bytes:
    """The content with a piece put in, over or away, its end cut off, or a bit turned; once to three times."""
    for kind, where, which in list(STEP.iter_unpack(drawn[1:]))[: 1 + drawn[0] % MOST_STEPS]:
        at = where * (len(content) + 1) >> 16
        piece = PIECES[which % len(PIECES)]
        if kind % 5 == 0:
            content = content[:at] + piece + content[at:]
        elif kind % 5 == 1:
            content = content[:at] + piece + content[at + len(piece) :]
        elif kind % 5 == 2:
            content = content[:at] + content[at + which % len(PIECES) + 1 :]
        elif kind % 5 == 3:
            content = content[:at]
        elif at < len(content):
            content = content[:at] + bytes([content[at] ^ 1 << which % 8]) + content[at + 1 :]
    return content


def fuzz(inputs, whole):
    """Runs a check with this many damaged contents."""

    def decorate(check):
        @settings(
            max_examples=TIMES * inputs // INPUTS,
            deadline=None,
            derandomize=TIMES == 1,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,  # a note says which of the inputs it was
        )
        @given(drawn=DAMAGE)
        def runs(drawn):
            size = len(drawn) // INPUTS
            for start in range(0, len(drawn), size):
                content = damaged(whole, drawn[start : start + size])
                try:
                    check(content)
                except BaseException as error:
                    error.add_note(f"content: {content!r}")
                    raise

        return runs

    return decorate


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzzed")


def found(*arguments, **keywords):
    """What is found; None where a sentence says that it cannot be read."""
    try:
        return found_in(corpus(*arguments, **keywords), block=7)
    except UserError as error:
        assert str(error).endswith(".") and "`" in str(error)
        return None


def is_archive(content):
    """Whether it begins as one, so that a member of it must be named."""
    return content.startswith(b"PK")


def is_recoded(content):
    """Whether a byte order mark says that its lines end otherwise."""
    return content.startswith((b"\xff\xfe", b"\xfe\xff"))


def number_of_lines(content):
    """A byte order mark is no line."""
    return len(split_lines(content.removeprefix(b"\xef\xbb\xbf")))


LINES = b"".join("line %d ä\n".encode() % number for number in range(12))


def test_moses(folder):
    (folder / "m.de").write_bytes(LINES)

    @fuzz(800, LINES)
    def check(content):
        (folder / "m.en").write_bytes(content)
        result = found(folder / "m.en", folder / "m.de")
        assert result or is_archive(content)
        if result and not is_recoded(content):
            assert all_lines(*result) == max(number_of_lines(content), 12)

    check()


def test_tsv(folder):
    rows = b"".join("1\tline %d ä\tZeile\n".encode() % number for number in range(12))

    @fuzz(600, rows)
    def check(content):
        (folder / "t").write_bytes(content)
        result = found(folder / "t", format="tsv", fields={"source": 2, "target": 3})
        assert result or is_archive(content) or content.count(b"\n") < 10  # columns that nobody can tell
        if result and not is_recoded(content):
            assert all_lines(*result) == number_of_lines(content)

    check()


def test_json_lines(folder):
    rows = b"".join(json.dumps({"en": f"a {n}", "de": "ü"}, ensure_ascii=False).encode() + b"\n" for n in range(8))

    @fuzz(600, rows)
    def check(content):
        (folder / "j").write_bytes(content)
        result = found(folder / "j", format="jsonl")
        assert result or is_archive(content) or content.count(b"\n") < 4  # keys that nobody can tell
        if result and not is_recoded(content):
            assert all_lines(*result) == number_of_lines(content)

    check()


def tar_of(content):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name in ("x", "a"):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()[:3072]  # tar fills up to 10 KiB, which nobody reads


def zip_of(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", content)
    return file.getvalue()


PACKED = {
    **{"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd.compress},
    **{"tar": tar_of, "zip": zip_of, "tgz": lambda content: gzip.compress(tar_of(content))},
}


@pytest.mark.parametrize("packer", PACKED)
def test_packed(folder, packer):
    whole = PACKED[packer](LINES)
    (folder / "p.de").write_bytes(LINES)

    @fuzz(100, whole)
    def check(content):
        (folder / "p").write_bytes(content)
        member = f"{folder / 'p'}!a" if packer in ("tar", "zip", "tgz") else folder / "p"
        result = found(member, folder / "p.de")
        if result:
            assert all_lines(*result) >= 12

    check()


TMX = """<?xml version="1.0" encoding="UTF-8"?><tmx version="1.4"><header/><body>
<tu><tuv xml:lang="en"><seg>One &amp; <hi>two</hi></seg></tuv><tuv xml:lang="de"><seg>Ä <ph>x</ph></seg></tuv></tu>
<tu><tuv lang="en"><seg>Three</seg></tuv><tuv lang="de"><seg>Drei</seg></tuv></tu></body></tmx>"""
WMT = """<dataset id="x"><doc id="1"><src lang="en"><p><seg id="1">One</seg><seg id="2">Two</seg></p></src>
<ref lang="de" translator="A"><p><seg id="1">Eins</seg><seg id="2">Zwei</seg></p></ref></doc></dataset>"""


NAMESPACES = (27, 28, 29)
"""expat's errors of prefixes, of which readers know nothing."""


@pytest.mark.parametrize(("form", "text", "units"), [("tmx", TMX, ".//tu"), ("wmt", WMT, ".//doc/src//seg")])
def test_xml(folder, form, text, units):
    @fuzz(350, text.encode())
    def check(content):
        (folder / "x").write_bytes(content)
        result = found(folder / "x", format=form)
        if not result:
            assert is_archive(content)
            return
        try:
            root = ElementTree.fromstring(content)
        except (ElementTree.ParseError, ValueError, LookupError) as error:
            if getattr(error, "code", None) in NAMESPACES:
                return
            assert result[1] and result[1][-1].reason in ("markup", "entity", "charset")
            return
        if not result[1] or result[1][-1].reason not in ("entity", "markup"):
            assert all_lines(*result) >= len(root.findall(units))

    check()


SGM = b"""<srcset setid="s"><doc docid="a"><seg id="1">One & <b></seg><seg id="2">Two</seg></doc>
<doc docid="b"><p><seg id="1">Three \xc3\xa4</seg></p></doc></srcset>"""
REFERENCES = SGM.replace(b"srcset", b"refset")
SEGMENT = re.compile(rb"<seg\b(?![\x80-\xff])[^<>]*>", re.IGNORECASE)


def test_sgm(folder):
    (folder / "r").write_bytes(REFERENCES)

    @fuzz(350, SGM)
    def check(content):
        (folder / "s").write_bytes(content)
        result = found(folder / "s", folder / "r", format="sgm")
        assert result or is_archive(content)
        if result:
            assert all_lines(*result) >= max(3, len(SEGMENT.findall(content)))

    check()


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


def test_catalogs_in_text(folder):
    @fuzz(500, PO)
    def check(content):
        (folder / "c").write_bytes(content)
        assert found(folder / "c", format="po") or is_archive(content)

    check()
