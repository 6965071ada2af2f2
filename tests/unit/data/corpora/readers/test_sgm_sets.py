import pytest

from fairseq_mtmoe.data.corpora.blocks import Block
from fairseq_mtmoe.data.corpora.readers import read
from tests.helpers.reading import all_lines, corpus, found_in, places

SOURCE = """<srcset setid="newstest2014-deen-src" srclang="any">
<doc sysid="src" docid="bbc.1" genre="news" origlang="en">
<hl>
<seg id="1">AT&T &amp; R&D: 3 < 4</seg>
</hl>
<p>
<seg id="2"> Two
lines </seg>
</p>
</doc>
<DOC docid=cnn SYSID='src'>
<seg id=1>Three &lt;b&gt; &copy; &#8212; <i>kept</i></SEG>
</DOC>
</srcset>
"""
REFERENCE = """<refset setid="newstest2014-deen-ref" srclang="any" trglang="de">
<doc sysid="ref" docid="cnn"><seg id="1">Drei</seg></doc>
<doc sysid="ref" docid="bbc.1"><seg id="1">Eins</seg><seg id="2">Zwei</seg></doc>
</refset>
"""
PAIRS = [(1, "AT&T & R&D: 3 < 4", "Eins"), (2, "Two\nlines", "Zwei"), (3, "Three <b> &copy; — <i>kept</i>", "Drei")]


def sets(tmp_path, source=SOURCE, reference=REFERENCE):
    (tmp_path / "src.sgm").write_bytes(source if isinstance(source, bytes) else source.encode("utf-8"))
    (tmp_path / "ref.sgm").write_text(reference, encoding="utf-8")
    return corpus(tmp_path / "src.sgm", tmp_path / "ref.sgm")


@pytest.mark.parametrize("doctype", ["", "\ufeff", '<!DOCTYPE srcset SYSTEM "ftp://a.invalid/mteval.dtd">\n'])
def test_segments_are_paired_by_document_and_number(tmp_path, doctype):
    assert found_in(sets(tmp_path, doctype + SOURCE)) == (PAIRS, [])


def test_one_file_with_both(tmp_path):
    (tmp_path / "both").write_text(f"<?xml version='1.0'?>\n<mteval>\n{REFERENCE}{SOURCE}</mteval>", encoding="utf-8")
    assert found_in(corpus(tmp_path / "both")) == (PAIRS, [])


@pytest.mark.parametrize(
    "second",
    [
        '<doc sysid="ref2" docid="bbc.1"><seg id="2">Zwo</seg></doc></refset>',
        '</refset><refset trglang="de"><doc sysid="ref" docid="bbc.1"><seg id="2">Zwo</seg></doc></refset>',
    ],
)
def test_several_references(tmp_path, second):
    (block,) = read(sets(tmp_path, reference=REFERENCE.replace("</refset>", second)))
    assert isinstance(block, Block) and block.target == ["Eins", "Zwei", "Drei"]
    assert block.references == (["", "Zwo", ""],)


def test_segments_that_one_side_has_not(tmp_path):
    reference = REFERENCE.replace('<seg id="1">Eins', '<seg id="7">Eins')
    pairs, bad = found_in(sets(tmp_path, reference=reference))
    assert pairs == PAIRS[1:] and all_lines(pairs, bad) == 4
    assert places(bad) == [("src.sgm", 1, "unpaired", 1), ("src.sgm", 4, "unpaired", 1)]


def test_end_tags_may_be_left_out_and_numbers_too(tmp_path):
    source = "<srcset><doc docid=a><seg>One<seg>Two</doc></srcset>"
    reference = "<refset><doc docid=a><seg>Eins</seg><seg>Zwei</seg></doc></refset>"
    assert found_in(sets(tmp_path, source, reference)) == ([(1, "One", "Eins"), (2, "Two", "Zwei")], [])


@pytest.mark.parametrize(
    ("wrong", "reason"), [(b"\xff", "encoding"), (b"\0", "nul"), (b"", "empty"), (b"x" * 400_000, "long")]
)
def test_a_segment_that_cannot_be_used_costs_itself(tmp_path, wrong, reason):
    source = SOURCE.encode().replace(b" Two\nlines ", wrong)
    pairs, bad = found_in(sets(tmp_path, source))
    assert pairs == [PAIRS[0], PAIRS[2]] and places(bad) == [("src.sgm", 2, reason, 1)]


def test_a_file_that_ends_within_a_segment(tmp_path):
    for size in range(len(SOURCE) - 40, 120, -7):
        pairs, bad = found_in(sets(tmp_path, SOURCE[:size]))
        assert pairs == PAIRS[: len(pairs)] and bad and all_lines(pairs, bad) >= 3
    pairs, bad = found_in(sets(tmp_path, reference=REFERENCE[:-25]))
    assert len(pairs) == 2 and [line.reason for line in bad] == ["unpaired", "markup"]
    assert all_lines(pairs, bad) == 3


def test_segments_of_no_set_in_one_file_with_both(tmp_path):
    (tmp_path / "both").write_text(SOURCE.replace("srcset", "surcet") + REFERENCE, encoding="utf-8")
    pairs, bad = found_in(corpus(tmp_path / "both", format="sgm"))
    assert not pairs and places(bad) == [("both", number, "unpaired", 1) for number in range(1, 7)]


@pytest.mark.parametrize("content", [SOURCE.encode("utf-16"), b"<srcset></srcset>", b""])
def test_a_file_without_segments(tmp_path, content):
    pairs, bad = found_in(corpus(*sets(tmp_path, content).paths, format="sgm"))
    assert not pairs and places(bad) == [("src.sgm", 1, "markup", 3)]
    pairs, bad = found_in(corpus(tmp_path / "src.sgm", format="sgm"))
    assert not pairs and places(bad) == [("src.sgm", 1, "markup", 0)]
