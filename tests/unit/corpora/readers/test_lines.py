"""Files of lines: a file for each side, and IWSLT's talks; and lines of evaluation sets in all formats."""

import codecs
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.corpora.blocks import BAD_REASONS, HARMLESS, MAX_CHARACTERS, MAX_LINE, BadLine, check
from fairseq_mtmoe.corpora.readers import lines as lines_module
from fairseq_mtmoe.corpora.readers import read
from fairseq_mtmoe.corpora.recipes.schema import Role
from tests.helpers.reading import corpus, found_in, split_lines, told, usable_line, written
from tests.helpers.refused import refused


def test_bad_lines_come_in_order_before_the_block_that_follows_them(tmp_path):
    found = list(read(written(tmp_path, b"a\nb\n\xff\nd\n\n", b"1\n\n3\n4\n5\n"), block=1))
    items = [(one.line, one.reason) if isinstance(one, BadLine) else one.lines.tolist() for one in found]
    assert items == [(2, "empty"), (3, "encoding"), (5, "empty"), [1], [4]]


def test_marks_of_other_systems_are_no_text_and_other_line_ends_and_encodings_are_reported(tmp_path):
    assert found_in(written(tmp_path, b"Hello\r", b"Hallo")) == ([(1, "Hello", "Hallo")], [])
    assert found_in(written(tmp_path, codecs.BOM_UTF8 + b"a\n", b"1\n")) == ([(1, "a", "1")], [])
    pairs, bad = told(written(tmp_path, "a\nb\n".encode("utf-16"), b"1\n2\n3\n"))
    assert pairs == [] and {reason for _, _, reason in bad} <= {"encoding", "nul"}
    for long in ("x" * (MAX_LINE + 1), "ä" * 330_000):  # a few characters more, and more bytes than are kept
        assert told(written(tmp_path, f"{long}\nb\n", b"1\n2\n")) == ([(2, "b", "2")], [("a", 1, "long")])
    with refused("a"):
        found_in(written(tmp_path, b"a\rb\rc", b"1\n2\n3\n"))


def test_memory_does_not_grow_with_the_file(tmp_path):
    files = written(tmp_path, b"a sentence of some length, which is English\n" * 120_000, b"ein Satz\n" * 120_000)
    tracemalloc.start()
    try:
        assert sum(len(block.source) for block in read(files, block=1000)) == 120_000
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_blocks_of_long_lines_end_early(tmp_path):
    line = b"x" * MAX_LINE + b"\n"
    blocks = list(read(written(tmp_path, line * 1100, b"b\n" * 1100)))
    characters = [sum(len(text) for side in (block.source, block.target) for text in side) for block in blocks]
    assert sum(len(block.source) for block in blocks) == 1100
    most = MAX_CHARACTERS + lines_module._CHUNK + MAX_LINE  # a block ends after what is read at a time
    assert all(MAX_CHARACTERS < size <= most for size in characters[:-1]) and characters[-1] <= MAX_CHARACTERS


PIECES = [*(b"", b"a", b" ", b"\r", b"\n", b"\n", b"\0", b"\xff", b"\t"), *map(str.encode, "ä\u2028"), "ä".encode()[:1]]


@settings(max_examples=100, deadline=None)
@given(*[st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)] * 2, st.integers(1, 4))
def test_any_bytes_are_read_as_the_slow_way_reads_them(tmp_path_factory, source, target, chunk):
    assume(not any(b"\r" in side and b"\n" not in side for side in (source, target)))  # another test's
    sides = [split_lines(content) for content in (source, target)]
    number = min(map(len, sides))
    source, target = (b"".join(line + b"\n" for line in side[:number]) for side in sides)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "_CHUNK", chunk)
        pairs, bad = found_in(written(tmp_path_factory.getbasetemp(), source, target))
    slow = zip(range(1, number + 1), *(map(usable_line, side[:number]) for side in sides), strict=True)
    assert pairs == [pair for pair in slow if None not in pair] and len(pairs) + len(bad) == number


PAIRS = [
    (1, "On bees", "Über Bienen"),
    (2, "TED Talk: Some Body likes bees.", "Vortrag: Some Body mag Bienen."),
    (3, "Bees are small .", "Bienen sind klein ."),
    (4, " If a < b , <i>b</i> is larger .", " Ist a < b , so ist <i>b</i> größer ."),
    (5, " On ants ", "Über Ameisen"),
    (6, "Ants , too .", "Ameisen auch ."),
]
TALKS = """<doc docid="1" genre="lectures">
<url>http://www.ted.com/talks/somebody_on_something.html</url>
<keywords>talks, bees</keywords>
<title>{}</title>
<description>{}</description>
{}
{}
{about}
</doc>
<url>http://www.ted.com/talks/another</url>
<title>{}</title>
{}
"""
ABOUT = ("<reviewer></reviewer>", '<translator href="http://www.ted.com/profiles/2">Ein Anderer</translator>')
SOURCE, TARGET = (TALKS.format(*(pair[side] for pair in PAIRS), about=ABOUT[side - 1]) for side in (1, 2))


@pytest.mark.parametrize("form", ["iwslt", "auto"])
@pytest.mark.parametrize("begins", ["<doc", "<url>"])
def test_what_is_said_about_a_talk_is_no_text_and_titles_are(tmp_path, form, begins):
    texts = [text[text.index(begins) :] for text in (SOURCE, TARGET)]
    assert found_in(written(tmp_path, *texts, format=form)) == (PAIRS, [])


def test_lines_that_cannot_be_used_misalign_nothing(tmp_path):
    """Neither among those about a talk, which count on neither side, nor in text."""
    source = SOURCE.encode().replace(b"talks, bees", b"talks, \xff").replace(b"Bees are", b"Bees \0")
    assert told(written(tmp_path, source, TARGET)) == (PAIRS[:2] + PAIRS[3:], [("a", 3, "nul")])


@pytest.mark.parametrize("form", ["iwslt", "moses"])
def test_sentences_that_one_file_has_more_are_refused(tmp_path, form):
    for more, names in ((("", "mehr\nnoch mehr\n"), "ba"), (("more\n<url>x</url>\nand more\n", ""), "ab")):
        texts = (SOURCE, TARGET) if form == "iwslt" else ("One\n", "Eins\n")
        with refused(*names):
            found_in(written(tmp_path, *map(str.__add__, texts, more), format=form))


@pytest.mark.parametrize("reason", BAD_REASONS)
def test_a_bad_line_costs_itself_in_training_text_and_ends_the_run_in_evaluation_sets(reason):
    files = corpus("a")
    check(BadLine("a", 1, reason, "a line"), files)
    evaluation = replace(files, role=Role.test)
    with nullcontext() if reason == HARMLESS else refused("a"):
        check(BadLine("a", 1, reason, "a line"), evaluation)


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
    broken = written(tmp_path, *(content.replace(b"Three", b"\xff") for content in WITH_EMPTY[form]), role=Role.test)
    with refused("a"):
        list(read(broken))
