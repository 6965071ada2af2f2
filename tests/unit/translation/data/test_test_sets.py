"""Test sets of a data directory: pairs, sizes, tiers; references are the text, and only if it is what was binarized."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
from fairseq.data import Dictionary

from fairseq_mtmoe.translation.decode import test_sets
from fairseq_mtmoe.translation.decode.test_sets import FAIRSEQ, TEXT, Speller, load_references
from tests.helpers import untrained
from tests.helpers.binarized import write_words
from tests.helpers.refused import refused


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return untrained.make_data(tmp_path_factory.mktemp("sets") / "data")


def test_sizes_of_every_pair(data, tmp_path):
    assert test_sets.sizes_of(str(data), "test") == untrained.TEST_SIZES
    assert test_sets.sizes_of(f"{data}:{data}", "train") == untrained.PAIRS  # of the first folder
    with refused("--subset"):
        test_sets.sizes_of(str(data), "dev")
    for folder in (tmp_path, tmp_path / "nothing"):
        with refused():
            test_sets.sizes_of(str(folder), "test")


def test_pairs_are_the_wanted_ones_else_those_trained_on_else_all():
    sizes = {"en-aa": 1, "en-bb": 2, "en-cc": 3}
    assert test_sets.choose_pairs(sizes, ["en-bb", "aa-en", "en-zz"], []) == ["en-bb", "aa-en"]
    assert test_sets.choose_pairs(sizes, ["en-zz"], []) == ["en-aa", "en-bb", "en-cc"]
    assert test_sets.choose_pairs(sizes, ["en-bb"], ["cc-en", "en-aa", "cc-en"]) == ["cc-en", "en-aa"]
    with refused("--lang-pairs"):
        test_sets.choose_pairs(sizes, [], ["en-aa", "en-zz"])


def test_tiers_follow_the_training_data_of_all_shards(data, tmp_path):
    pairs = ["en-aa", "bb-en", "en-cc", "en-zz"]
    assert test_sets.tiers_of(str(data), pairs) == {"en-aa": "high", "bb-en": "mid", "en-cc": "low"}
    for name in ("train.en-cc", "test"):
        (tmp_path / name).mkdir()
        for path in data.glob(f"{name}.*"):
            shutil.copy(path, tmp_path / name)
    twelve = ":".join([str(data), *[str(tmp_path / "train.en-cc")] * 7])
    assert test_sets.tiers_of(twelve, ["en-aa", "en-cc"]) == {"en-aa": "high", "en-cc": "high"}
    untold = tmp_path / "test"
    assert test_sets.tiers_of(str(untold), ["en-aa"]) == {}
    (untold / "tiers.json").write_text(json.dumps({"low": ["en-aa"]}))
    assert test_sets.tiers_of(str(untold), ["en-aa"]) == {"en-aa": "low"}


# ---- references ----

LINES = ["Straße nach Köln", 'I\'m here, "now" &c.', "42 % (x)", "ﬁne…", "नमस्ते दुनिया"]
PIECES = ["▁Straße ▁nach ▁K ö ln", '▁I \'m ▁here , ▁" now " ▁& c .', "▁4 2 ▁% ▁( x )", "▁ﬁne …", "▁नमस्ते ▁दुनिया"]
NAME = "test.en-de.de"
KNOWN = sorted({piece for line in PIECES for piece in line.split()})


@pytest.fixture
def folder(tmp_path):
    """A test set of five lines, binarized and as text."""
    write_pieces(tmp_path, PIECES)
    (tmp_path / "raw").mkdir()
    write_text(tmp_path, LINES)
    return tmp_path


def write_pieces(folder, lines, known=KNOWN, impl="mmap"):
    dictionary = Dictionary()
    for piece in known:
        dictionary.add_symbol(piece)
    dictionary.save(str(folder / "dict.de.txt"))
    write_words(folder / NAME, lines, dictionary, impl)


def write_text(folder, lines):
    (folder / "raw" / NAME).write_bytes("".join(f"{line}\n" for line in lines).encode())


def load(folder, pair="en-de", way=TEXT, post_process="sentencepiece"):
    spell = Speller(Dictionary.load(str(folder / "dict.de.txt")), post_process)
    return load_references(str(folder), "test", pair, spell, way)


@pytest.mark.parametrize("pair", ["en-de", "xx-de"])
def test_the_text_is_found_for_the_pair_and_no_other(folder, pair):
    if pair == "xx-de":  # the files of one direction serve the other, too
        for path in (*folder.glob("test.*"), *folder.glob("raw/*")):
            path.rename(path.with_name(path.name.replace("en-de", "de-xx")))
    found = load(folder, pair)
    name = NAME if pair == "en-de" else "test.de-xx.de"
    assert (found.lines, found.file, found.altered) == (LINES, f"raw/{name}", 0)
    assert replace(load(folder, pair, FAIRSEQ), file="") == replace(found, file="")
    assert load(folder, pair, FAIRSEQ).file == f"{name}.bin"


def test_without_text_the_altered_lines_are_counted(folder):
    shutil.rmtree(folder / "raw")
    write_pieces(folder, PIECES, [piece for piece in KNOWN if piece not in ("ö", "▁(", "▁%")])
    found = load(folder)
    assert (found.lines[0], found.lines[2], found.altered) == ("Straße nach K<<unk>>ln", "42<<unk>><<unk>>x)", 2)
    assert found == load(folder, way=FAIRSEQ)


@pytest.mark.parametrize(("known", "impl"), [(KNOWN[::2], "mmap"), (KNOWN[1::2], "cached")])
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


def test_text_that_is_not_what_was_binarized_is_refused(folder):
    swapped = [*LINES[:2], LINES[3], LINES[2], LINES[4]]
    for lines, words in (LINES[:4], "has 4"), (["", *LINES[1:]], "line 1"), (swapped, "line 3"):
        write_text(folder, lines)
        with refused(f"raw/{NAME}", f"{NAME}.bin", "--references fairseq") as caught:
            load(folder)
        assert f"but {words}" in str(caught.value)
    assert load(folder, way=FAIRSEQ).lines == LINES


@pytest.mark.parametrize(("pieces", "right", "wrong"), [
    (PIECES[0], (LINES[0],), ("Strasse nach Kn", "Straße nach K")),  # K…ln, at the end
    ("▁ka ö kak", ("kakakak", "Ka x Kak!", "kakak"), ("kak",)),  # what surrounds it does not overlap
])  # fmt: skip
def test_an_unknown_word_does_not_hide_another_line(folder, pieces, right, wrong):
    write_pieces(folder, [pieces, *PIECES[1:]], ["▁ka", "kak", *(piece for piece in KNOWN if piece != "ö")])
    for line in (*right, *wrong):
        write_text(folder, [line, *LINES[1:]])
        with nullcontext() if line in right else refused(f"raw/{NAME}"):
            assert load(folder).lines[0] == line
