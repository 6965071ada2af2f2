"""Counting sentences without loading them, in every format, and finding files that are empty or cut off."""

import numpy as np
import pytest
import torch
from fairseq.data import indexed_dataset

from fairseq_mtmoe.training.indexed_files import check_ids, count_sentences
from tests.helpers.binarized import write_ids
from tests.helpers.refused import refused

SENTENCES = [torch.arange(4, 4 + length) for length in (3, 1, 5, 2)]


@pytest.mark.parametrize(("impl", "vocab_size"), [("mmap", 100), ("mmap", 10**6)])
def test_it_counts_what_fairseq_wrote(impl, vocab_size, tmp_path):
    prefix = write_ids(tmp_path / "train.en-de.en", SENTENCES, vocab_size, impl)
    whole = len(indexed_dataset.make_dataset(prefix, impl))
    assert count_sentences(prefix) == count_sentences(prefix, impl) == whole == 4


def test_an_empty_file_and_an_unknown_type_of_numbers_are_refused(tmp_path):
    with refused("empty.bin"):
        count_sentences(write_ids(tmp_path / "empty", []))
    prefix = write_ids(tmp_path / "x", SENTENCES)
    content = (tmp_path / "x.idx").read_bytes()
    (tmp_path / "x.idx").write_bytes(content[:17] + b"\x63" + content[18:])
    with refused("x.idx"):
        count_sentences(prefix)


def test_other_formats_have_no_count_and_the_format_must_be_that_of_the_option(tmp_path):
    (tmp_path / "x.idx").write_bytes(b"HUFFIDX\0" + bytes(20))
    (tmp_path / "x.bin").write_bytes(np.arange(5).tobytes())
    (tmp_path / "text").write_text("1 2\n3\n")
    write_ids(tmp_path / "old", SENTENCES, impl="lazy")
    assert {count_sentences(str(tmp_path / name)) for name in ("x", "old")} == {None}
    assert count_sentences(str(tmp_path / "text"), "raw") is None
    for wrong in ((write_ids(tmp_path / "y", SENTENCES, impl="cached"), "mmap"), (str(tmp_path / "text"),)):
        with refused("--dataset-impl"):
            count_sentences(*wrong)


@pytest.mark.parametrize("vocab_size", [100, 10**6])
def test_ids_outside_the_dictionary_are_refused(vocab_size, tmp_path):
    prefix = write_ids(tmp_path / "x", SENTENCES, vocab_size)  # ids 4 to 8
    check_ids(prefix, 9)
    with refused("x.bin"):
        check_ids(prefix, 8)
    negative = write_ids(tmp_path / "negative", [*SENTENCES, torch.tensor([-1])], 10**10)
    with refused("negative.bin"):
        check_ids(negative, 100)


@pytest.mark.parametrize("suffix", ["idx", "bin"])
def test_a_file_cut_off_anywhere_or_missing_is_refused(suffix, tmp_path):
    prefix = write_ids(tmp_path / "x", SENTENCES)
    path = tmp_path / f"x.{suffix}"
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with refused(path.name):
            count_sentences(prefix)
    path.unlink()
    with refused(path.name):
        count_sentences(prefix)
