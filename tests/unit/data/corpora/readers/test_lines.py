"""Files of lines: a file for each side, and IWSLT's talks."""

import codecs
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.data.corpora.blocks import MAX_CHARACTERS, MAX_LINE, BadLine, Block
from fairseq_mtmoe.data.corpora.readers import lines as lines_module
from fairseq_mtmoe.data.corpora.readers import read
from tests.helpers.reading import all_lines, corpus, found_in, places, split_lines, usable_line
from tests.helpers.refused import refused


@pytest.fixture
def two(tmp_path):
    """Writes both sides, and gives the corpus."""

    def write(source: bytes, target: bytes):
        (tmp_path / "a.en").write_bytes(source)
        (tmp_path / "a.de").write_bytes(target)
        return corpus(tmp_path / "a.en", tmp_path / "a.de")

    return write


def test_bad_lines_come_in_order_before_the_block_that_follows_them(two):
    found = list(read(two(b"a\nb\n\xff\nd\n\n", b"1\n\n3\n4\n5\n"), block=1))
    bad = [(item.line, item.reason) for item in found if isinstance(item, BadLine)]
    assert bad == [(2, "empty"), (3, "encoding"), (5, "empty")]
    blocks = [(place, item.lines.tolist()) for place, item in enumerate(found) if isinstance(item, Block)]
    assert [lines for _, lines in blocks] == [[1], [4]] and blocks[1][0] > 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"caf\xe9 \xff", "encoding"),
        (b"a\0b", "nul"),
        (b" \t\xc2\xa0", "empty"),
        (b"x" * (MAX_LINE + 1), "long"),
        ("ä".encode() * (5 * MAX_LINE), "long"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_and_costs_its_pair_alone(two, line, reason):
    good, with_bad = b"a\nb\nc\n", b"1\n" + line + b"\n3\n"
    for name, files in (("a.en", (with_bad, good)), ("a.de", (good, with_bad))):
        pairs, bad = found_in(two(*files))
        assert [number for number, _, _ in pairs] == [1, 3]
        assert places(bad) == [(name, 2, reason, 1)]


def test_carriage_returns_alone_are_reported(two):
    pairs, bad = found_in(two(b"a\rb\rc", b"1\n2\n3\n"))
    assert places(bad) == [("a.en", 1, "line ends", 1), ("a.de", 2, "unequal", 2)] and not pairs


@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE])
def test_byte_order_marks_say_the_encoding(two, mark):
    name = {3: "utf-8", 2: "utf-16-be" if mark == codecs.BOM_UTF16_BE else "utf-16-le", 4: "utf-32-le"}[len(mark)]
    pairs, bad = found_in(two(mark + "Größe 𝄞\nb\n".encode(name), b"1\n2\n"))
    assert pairs == [(1, "Größe 𝄞", "1"), (2, "b", "2")] and not bad


def test_utf_16_that_ends_within_a_character(two):
    pairs, bad = found_in(two(codecs.BOM_UTF16_LE + b"a\0\n\0b", b"1\n2\n"))
    assert len(pairs) == 1 and places(bad) == [("a.en", 2, "charset", 1)]


@pytest.mark.parametrize("longer", [0, 1])
def test_lines_that_one_side_has_more_are_one_bad_line(two, longer):
    sides = [b"a\n" * 5, b"b\n" * 3]
    pairs, bad = found_in(two(*(sides if longer == 0 else sides[::-1])))
    assert len(pairs) == 3 and places(bad) == [(("a.en", "a.de")[longer], 4, "unequal", 2)]


def test_missing_files_and_unknown_formats(tmp_path):
    with refused("nowhere"):
        found_in(corpus(tmp_path / "nowhere", tmp_path / "a"))
    with refused("format of corpus"):
        found_in(corpus(tmp_path, tmp_path, format="docx"))


def test_memory_does_not_grow_with_the_file(two):
    files = two(b"a sentence of some length, which is English\n" * 120_000, b"ein Satz\n" * 120_000)
    tracemalloc.start()
    try:
        assert sum(len(block.source) for block in read(files, block=1000)) == 120_000
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_blocks_of_long_lines_end_early(two):
    line = b"x" * MAX_LINE + b"\n"
    blocks = list(read(two(line * 1100, b"b\n" * 1100)))
    characters = [sum(len(text) for side in (block.source, block.target) for text in side) for block in blocks]
    assert sum(len(block.source) for block in blocks) == 1100
    most = MAX_CHARACTERS + lines_module._CHUNK + MAX_LINE  # a block ends after what is read at a time
    assert all(MAX_CHARACTERS < size <= most for size in characters[:-1]) and characters[-1] <= MAX_CHARACTERS


PIECES = [*(b"", b"a", b" ", b"\r", b"\n", b"\n", b"\0", b"\xff", b"\t"), *map(str.encode, "ä\u2028"), "ä".encode()[:1]]


@settings(max_examples=100, deadline=None)
@given(*[st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)] * 2, st.integers(1, 4))
def test_any_bytes_are_read_as_the_slow_way_reads_them(tmp_path_factory, source, target, chunk):
    folder = tmp_path_factory.getbasetemp()
    (folder / "any.en").write_bytes(source)
    (folder / "any.de").write_bytes(target)
    if any(b"\r" in side and b"\n" not in side for side in (source, target)):
        return  # another test's
    before, lines_module._CHUNK = lines_module._CHUNK, chunk
    try:
        pairs, bad = found_in(corpus(folder / "any.en", folder / "any.de"))
    finally:
        lines_module._CHUNK = before
    sides = [split_lines(content) for content in (source, target)]
    slow = [
        (number, usable_line(one), usable_line(other))
        for number, (one, other) in enumerate(zip(*sides, strict=False), 1)
    ]
    assert pairs == [pair for pair in slow if pair[1] is not None and pair[2] is not None]
    assert all_lines(pairs, bad) == max(map(len, sides))


SOURCE = """<doc docid="1" genre="lectures">
<url>http://www.ted.com/talks/somebody_on_something.html</url>
<keywords>talks, bees</keywords>
<title>On bees</title>
<description>TED Talk: Some Body likes bees.</description>
Bees are small .
 If a < b , <i>b</i> is larger .
<reviewer></reviewer>
</doc>
<url>http://www.ted.com/talks/another</url>
<title> On ants </title>
Ants , too .
"""
TARGET = """<doc docid="1" genre="lectures">
<url>http://www.ted.com/talks/somebody_on_something.html</url>
<keywords>talks, bees</keywords>
<title>Über Bienen</title>
<description>Vortrag: Some Body mag Bienen.</description>
Bienen sind klein .
 Ist a < b , so ist <i>b</i> größer .
<translator href="http://www.ted.com/profiles/2">Ein Anderer</translator>
</doc>
<url>http://www.ted.com/talks/another</url>
<title>Über Ameisen</title>
Ameisen auch .
"""
PAIRS = [
    (1, "On bees", "Über Bienen"),
    (2, "TED Talk: Some Body likes bees.", "Vortrag: Some Body mag Bienen."),
    (3, "Bees are small .", "Bienen sind klein ."),
    (4, " If a < b , <i>b</i> is larger .", " Ist a < b , so ist <i>b</i> größer ."),
    (5, " On ants ", "Über Ameisen"),
    (6, "Ants , too .", "Ameisen auch ."),
]


def talks(folder, source=SOURCE, target=TARGET, **options):
    for lang, content in (("en", source), ("de", target)):
        (folder / f"train.tags.en-de.{lang}").write_bytes(content if isinstance(content, bytes) else content.encode())
    return corpus(folder / "train.tags.en-de.en", folder / "train.tags.en-de.de", **options)


@pytest.mark.parametrize("form", ["iwslt", "auto"])
@pytest.mark.parametrize("begins", ["<doc", "<url>"])
def test_what_is_said_about_a_talk_is_no_text_and_titles_are(tmp_path, form, begins):
    texts = [text[text.index(begins) :] for text in (SOURCE, TARGET)]
    assert found_in(talks(tmp_path, *texts, format=form)) == (PAIRS, [])


def test_lines_that_cannot_be_used_misalign_nothing(tmp_path):
    """Neither among those about a talk, which count on neither side, nor in text."""
    source = SOURCE.encode().replace(b"talks, bees", b"talks, \xff").replace(b"Bees are", b"Bees \0")
    pairs, bad = found_in(talks(tmp_path, source))
    assert pairs == [pair for pair in PAIRS if pair[0] != 3]
    assert [(line.line, line.reason) for line in bad] == [(3, "nul")]


def test_sentences_that_one_file_has_more_are_counted(tmp_path):
    pairs, bad = found_in(talks(tmp_path, target=TARGET + "<url>x</url>\nmehr\nnoch mehr\n"))
    assert pairs == PAIRS and [(line.line, line.reason, line.lost) for line in bad] == [(7, "unequal", 2)]


def test_half_a_character_costs_its_line_alone_and_a_lone_line_may_end_in_a_carriage_return(two):
    pairs, bad = found_in(two(codecs.BOM_UTF16_LE + b"a\0\n\0\x00\xd8\n\0c\0\n\0", b"1\n2\n3\n"))
    assert [number for number, _, _ in pairs] == [1, 3] and places(bad) == [("a.en", 2, "encoding", 1)]
    assert found_in(two(b"Hello\r", b"Hallo")) == ([(1, "Hello", "Hallo")], [])
