"""Counting sentences without loading them, in every format, and finding files that are empty or cut off."""

import numpy as np
import pytest
import torch
from fairseq.data import indexed_dataset

from fairseq_mtmoe.data.indexed_files import count_sentences
from fairseq_mtmoe.errors import UserError

SENTENCES = [torch.arange(4, 4 + length) for length in (3, 1, 5, 2)]


def write(prefix, sentences, impl="mmap", vocab_size=100):
    builder = indexed_dataset.make_builder(f"{prefix}.bin", impl=impl, vocab_size=vocab_size)
    for sentence in sentences:
        builder.add_item(sentence)
    builder.finalize(f"{prefix}.idx")
    return str(prefix)


def cut(path, size):
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize("impl", ["mmap", "lazy", "cached"])
@pytest.mark.parametrize("vocab_size", [100, 10**6])
def test_it_counts_what_fairseq_wrote(impl, vocab_size, tmp_path):
    prefix = write(tmp_path / "train.en-de.en", SENTENCES, impl, vocab_size)
    assert count_sentences(prefix) == len(indexed_dataset.make_dataset(prefix, impl)) == 4


@pytest.mark.parametrize("impl", ["mmap", "cached"])
def test_an_empty_file_is_refused(impl, tmp_path):
    with pytest.raises(UserError, match=r"train.en-de.en.bin` must hold at least one sentence, but is empty"):
        count_sentences(write(tmp_path / "train.en-de.en", [], impl))


@pytest.mark.parametrize("impl", ["mmap", "cached"])
@pytest.mark.parametrize("suffix", ["idx", "bin"])
@pytest.mark.parametrize("share", [0.99, 0.5, 0.1, 0.0])
def test_a_truncated_file_is_refused(impl, suffix, share, tmp_path):
    prefix = write(tmp_path / "train.en-de.en", SENTENCES, impl)
    path = tmp_path / f"train.en-de.en.{suffix}"
    cut(path, int(path.stat().st_size * share))
    with pytest.raises(UserError, match=rf"train.en-de.en.{suffix}` must be a whole file, but is truncated"):
        count_sentences(prefix)


def test_an_index_with_an_unknown_type_is_refused(tmp_path):
    prefix = write(tmp_path / "train.en-de.en", SENTENCES, "mmap")
    index = bytearray((tmp_path / "train.en-de.en.idx").read_bytes())
    index[17] = 99
    (tmp_path / "train.en-de.en.idx").write_bytes(index)
    with pytest.raises(UserError, match="truncated or damaged"):
        count_sentences(prefix)


def test_other_formats_and_missing_files_have_no_count(tmp_path):
    assert count_sentences(str(tmp_path / "train.en-de.en")) is None
    (tmp_path / "x.idx").write_bytes(b"HUFFIDX\0" + bytes(20))
    (tmp_path / "x.bin").write_bytes(np.arange(5).tobytes())
    assert count_sentences(str(tmp_path / "x")) is None
