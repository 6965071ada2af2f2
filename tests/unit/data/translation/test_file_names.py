"""File names of fairseq's data: what is written is read again, and other names are no such files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_mtmoe.data.translation.file_names import Side, find_side, indexed_sides, read_side_name, side_name

languages = st.from_regex(r"[a-z]{2,3}(_[A-Z][A-Za-z]{1,3})?", fullmatch=True)


@given(st.sampled_from(["train", "train1", "test.v2"]), languages, languages, st.booleans())
def test_a_name_says_what_it_was_made_of(split, source, target, of_target):
    side = Side(split, source, target, target if of_target else source)
    assert read_side_name(side_name(split, side.pair, side.lang)) == side


def test_indices_say_which_sides_are_there(tmp_path):
    for name in (
        "train.en-de.en.bin",
        "train.en-de.en.idx",
        "test.en-de.de.idx",
        "valid.en-de.en",
        "dict.en.txt",
        "train.en.en.idx",
        "train.align.en-de.idx",
    ):
        (tmp_path / name).touch()
    assert indexed_sides(tmp_path) == [Side("test", "en", "de", "de"), Side("train", "en", "de", "en")]


@pytest.mark.parametrize("suffix", ["", ".idx"])
def test_a_pairs_files_serve_the_reversed_pair(suffix, tmp_path):
    (tmp_path / f"test.en-de.de{suffix}").touch()
    assert find_side(tmp_path, "test", "en", "de", "de") == find_side(tmp_path, "test", "de", "en", "de")
    assert find_side(tmp_path, "test", "de", "en", "de") == str(tmp_path / "test.en-de.de")
    assert find_side(tmp_path, "test", "en", "de", "en") is None
