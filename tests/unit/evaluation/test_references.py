"""References are the text, and only if it is what was binarized."""

import shutil
from dataclasses import replace

import pytest
from fairseq.data import Dictionary, indexed_dataset

from fairseq_mtmoe.evaluation.test_sets import FAIRSEQ, TEXT, Speller, load_references
from tests.golden.old_runs import OLD
from tests.helpers.refused import refused

LINES = ["Straße nach Köln", 'I\'m here, "now" &c.', "42 % (x)", "ﬁne…", "नमस्ते दुनिया"]
PIECES = ["▁Straße ▁nach ▁K ö ln", '▁I \'m ▁here , ▁" now " ▁& c .', "▁4 2 ▁% ▁( x )", "▁ﬁne …", "▁नमस्ते ▁दुनिया"]
KNOWN = sorted({piece for line in PIECES for piece in line.split()})


@pytest.fixture
def folder(tmp_path):
    """Two test sets in one binarized file of five lines, for en-de and for de-en."""
    write_pieces(tmp_path, PIECES)
    (tmp_path / "raw").mkdir()
    write_text(tmp_path, LINES)
    return tmp_path


def write_pieces(folder, lines, known=KNOWN, impl="mmap"):
    dictionary = Dictionary()
    for piece in known:
        dictionary.add_symbol(piece)
    dictionary.save(str(folder / "dict.de.txt"))
    builder = indexed_dataset.make_builder(str(folder / "test.en-de.de.bin"), impl=impl, vocab_size=len(dictionary))
    for line in lines:
        builder.add_item(dictionary.encode_line(line, add_if_not_exist=False))
    builder.finalize(str(folder / "test.en-de.de.idx"))


def write_text(folder, lines):
    (folder / "raw" / "test.en-de.de").write_bytes("".join(f"{line}\n" for line in lines).encode())


def load(folder, pair="en-de", way=TEXT, post_process="sentencepiece"):
    spell = Speller(Dictionary.load(str(folder / "dict.de.txt")), post_process)
    return load_references(str(folder), "test", pair, spell, way)


@pytest.mark.parametrize("pair", ["en-de", "xx-de"])
def test_the_text_is_found_for_the_pair_and_no_other(folder, pair):
    if pair == "xx-de":  # the files of one direction serve the other, too
        for path in (*folder.glob("test.*"), *folder.glob("raw/*")):
            path.rename(path.with_name(path.name.replace("en-de", "de-xx")))
    found = load(folder, pair)
    name = "test.en-de.de" if pair == "en-de" else "test.de-xx.de"
    assert (found.lines, found.file, found.altered) == (LINES, f"raw/{name}", 0)
    assert replace(load(folder, pair, FAIRSEQ), file="") == replace(found, file="")
    assert load(folder, pair, FAIRSEQ).file == f"{name}.bin"


def test_without_text_the_altered_lines_are_counted(folder):
    shutil.rmtree(folder / "raw")
    write_pieces(folder, PIECES, known=[piece for piece in KNOWN if piece not in ("ö", "▁(", "▁%")])
    found = load(folder)
    assert found.lines[0] == "Straße nach K<<unk>>ln" and found.lines[2] == "42<<unk>><<unk>>x)"
    assert found.altered == 2
    assert found == load(folder, way=FAIRSEQ)


@pytest.mark.parametrize(("known", "impl"), [(KNOWN[::2], "mmap"), (KNOWN[1::2], "cached"), (KNOWN[:1], "mmap")])
def test_unknown_words_may_be_anything(folder, known, impl):
    write_pieces(folder, PIECES, known, impl)
    assert load(folder).lines == LINES


def test_what_people_do_to_text_before_binarizing_is_no_difference(folder):
    """Words apart from punctuation, lower case, NFKC, spaces."""
    lines = ["strasse nach köln", 'i \'m here , " now " & c .', "42 % ( x )", "fine ...", "नमस्ते दुनिया"]
    write_pieces(folder, lines, [word for line in lines for word in line.split()])
    for post_process in (None, "subword_nmt"):
        assert load(folder, post_process=post_process).lines == LINES


def test_lines_end_in_line_feeds_alone(folder):
    lines = ["Straße\u2028nach Köln", *LINES[1:4], "नमस्ते\rदुनिया\r"]
    write_text(folder, lines)
    assert load(folder).lines == ["Straße nach Köln", *LINES[1:4], "नमस्ते दुनिया"]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (LINES[:4], "has 4"),
        (["Straße nach Bonn", *LINES[1:]], "line 1"),
        (["", *LINES[1:]], "line 1"),
        ([*LINES[:2], LINES[3], LINES[2], LINES[4]], "line 3"),
        ([*LINES[:4], f"{LINES[4]} {LINES[4]}"], "line 5"),
    ],
    ids=["short", "other word", "empty", "swapped", "more"],
)
def test_text_that_is_not_what_was_binarized_is_refused(folder, lines, words):
    write_text(folder, lines)
    with refused("raw/test.en-de.de", "test.en-de.de.bin", "--references fairseq") as caught:
        load(folder)
    assert f"but {words}" in str(caught.value)
    assert load(folder, way=FAIRSEQ).lines == LINES


@pytest.mark.parametrize("line", ["Strasse nach Kn", "Kölnstraße nach", "Straße nach K"])
def test_unknown_words_do_not_hide_another_line(folder, line):
    """`▁K ö ln` without its ö is K…ln, at the end."""
    write_pieces(folder, PIECES, known=[piece for piece in KNOWN if piece != "ö"])
    write_text(folder, [line, *LINES[1:]])
    with refused("raw/test.en-de.de"):
        load(folder)


def test_what_surrounds_an_unknown_word_does_not_overlap(folder):
    write_pieces(folder, ["▁ka ö kak", *PIECES[1:]], known=["▁ka", "kak", *(piece for piece in KNOWN if piece != "ö")])
    for line in ("kakakak", "Ka x Kak!", "kakak"):
        write_text(folder, [line, *LINES[1:]])
        assert load(folder).lines[0] == line
    for line in ("kak", "ka"):
        write_text(folder, [line, *LINES[1:]])
        with refused("raw/test.en-de.de"):
            load(folder)


def test_data_of_0_1_0_has_its_text():
    folder = OLD / "prepared"
    found = load(folder)
    assert found.lines == (folder / "raw" / "test.en-de.de").read_text().splitlines() and len(found.lines) == 8
