"""Counting sentences without loading them, in every format, and finding files that are empty or cut off."""

import os
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import data_utils, indexed_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_mtmoe.data import indexed_files
from fairseq_mtmoe.data.indexed_files import check_ids, count_sentences
from tests.helpers.binarized import write_ids
from tests.helpers.damage import damaged, value_or_sentence
from tests.helpers.refused import refused

SENTENCES = [torch.arange(4, 4 + length) for length in (3, 1, 5, 2)]


@pytest.mark.parametrize(("impl", "vocab_size"), [("mmap", 100), ("mmap", 10**6), ("lazy", 100), ("cached", 10**6)])
def test_it_counts_what_fairseq_wrote(impl, vocab_size, tmp_path):
    prefix = write_ids(tmp_path / "train.en-de.en", SENTENCES, vocab_size, impl)
    assert count_sentences(prefix) == len(indexed_dataset.make_dataset(prefix, impl)) == 4


@pytest.mark.parametrize("impl", ["mmap", "cached"])
def test_an_empty_file_is_refused(impl, tmp_path):
    with refused("train.en-de.en.bin"):
        count_sentences(write_ids(tmp_path / "train.en-de.en", [], impl=impl))


@pytest.mark.parametrize(
    ("impl", "suffix", "damage"),
    [
        ("mmap", "idx", lambda content: content[: int(len(content) * 0.99)]),
        ("mmap", "bin", lambda content: content[: len(content) // 2]),
        ("cached", "idx", lambda content: b""),
        ("cached", "bin", lambda content: content[: int(len(content) * 0.9)]),
        ("mmap", "idx", lambda content: content[:17] + b"\x63" + content[18:]),  # an unknown type
    ],
)
def test_a_truncated_or_unknown_file_is_refused(impl, suffix, damage, tmp_path):
    prefix = write_ids(tmp_path / "train.en-de.en", SENTENCES, impl=impl)
    path = tmp_path / f"train.en-de.en.{suffix}"
    path.write_bytes(damage(path.read_bytes()))
    with refused(path.name):
        count_sentences(prefix)


def test_other_formats_have_no_count_and_the_format_must_be_that_of_the_option(tmp_path):
    (tmp_path / "x.idx").write_bytes(b"HUFFIDX\0" + bytes(20))
    (tmp_path / "x.bin").write_bytes(np.arange(5).tobytes())
    assert count_sentences(str(tmp_path / "x")) is None
    (tmp_path / "text").write_text("1 2\n3\n")
    assert count_sentences(str(tmp_path / "text"), "raw") is None
    prefix = write_ids(tmp_path / "x", SENTENCES, impl="cached")
    assert count_sentences(prefix, "cached") == count_sentences(prefix, "lazy") == 4
    for wrong in ((prefix, "mmap"), (str(tmp_path / "text"),)):
        with refused("--dataset-impl"):
            count_sentences(*wrong)


@pytest.mark.parametrize("suffix", ["idx", "bin"])
def test_what_is_no_file_is_one_sentence(suffix, tmp_path):
    prefix = write_ids(tmp_path / "x", SENTENCES)
    path = tmp_path / f"x.{suffix}"
    path.unlink()
    with refused(path.name):
        count_sentences(prefix)
    os.mkfifo(path)
    with refused(path.name):
        count_sentences(prefix)


LAYOUTS = {
    "mmap": [("head", "V26"), ("lengths", "<i4", 4), ("addresses", "<i8", 4)],
    "cached": [("head", "V48"), ("dimensions", "<i8", 5), ("addresses", "<i8", 5), ("lengths", "<i8", 4)],
}


WRONG = [
    ("lengths", 1, -1),
    ("lengths", 1, 0),
    ("lengths", 0, 2**31 - 1),
    ("addresses", 0, -8),
    ("addresses", 2, 2**60),
    ("addresses", 2, 2),  # inside another sentence
    ("addresses", 3, 2),
]


@pytest.mark.parametrize("impl", ["mmap", "cached"])
@pytest.mark.parametrize(("part", "number", "value"), WRONG)
def test_an_index_that_points_elsewhere_is_refused(impl, part, number, value, tmp_path):
    prefix = write_ids(tmp_path / "x", SENTENCES, impl=impl)
    index = np.fromfile(f"{prefix}.idx", LAYOUTS[impl])
    assert index.tobytes() == Path(f"{prefix}.idx").read_bytes()
    index[part][0, number] = value
    index.tofile(f"{prefix}.idx")
    with refused():
        count_sentences(prefix)


def test_lists_of_alignments_may_be_empty(tmp_path):
    prefix = write_ids(tmp_path / "x", [*SENTENCES, torch.arange(0)])
    assert count_sentences(prefix, may_be_empty=True) == 5
    with refused("x.idx"):
        count_sentences(prefix)


@pytest.mark.parametrize(("impl", "vocab_size"), [("mmap", 100), ("mmap", 10**6), ("cached", 10**10)])
def test_ids_outside_the_dictionary_are_refused(impl, vocab_size, tmp_path):
    prefix = write_ids(tmp_path / "x", SENTENCES, vocab_size, impl)  # ids 4 to 8
    check_ids(prefix, 9)
    with refused("x.bin"):
        check_ids(prefix, 8)
    negative = write_ids(tmp_path / "negative", [*SENTENCES, torch.tensor([-1])], 10**10, impl)
    with refused("negative.bin"):
        check_ids(negative, 100)


def test_millions_of_tokens_take_no_time(tmp_path, monkeypatch):
    monkeypatch.setattr(indexed_files, "_BLOCK", 1000)
    sentences = 200_000
    lengths = np.random.default_rng(1).integers(1, 40, sentences).astype(np.int32)
    (tmp_path / "x.bin").write_bytes(np.full(lengths.sum(), 7, np.uint16).tobytes())
    addresses = 2 * (np.cumsum(lengths, dtype=np.int64) - lengths)
    head = struct.pack("<9sQBQ", b"MMIDIDX\0\0", 1, 8, sentences)
    (tmp_path / "x.idx").write_bytes(head + lengths.tobytes() + addresses.tobytes())
    start = time.process_time()
    assert count_sentences(str(tmp_path / "x")) == len(indexed_dataset.make_dataset(str(tmp_path / "x"), "mmap"))
    check_ids(str(tmp_path / "x"), 8)
    assert time.process_time() - start < 1


@settings(max_examples=100, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_passes_can_be_read_and_all_else_is_a_sentence(tmp_path, data):
    prefix = write_ids(tmp_path / "x", SENTENCES, impl=data.draw(st.sampled_from(["mmap", "cached"])))
    suffix = data.draw(st.sampled_from(["idx", "idx", "bin"]))
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    counted = value_or_sentence(lambda: (count_sentences(prefix), check_ids(prefix, 50)))
    if counted is not None:
        count = counted[0]
        dataset = data_utils.load_indexed_dataset(prefix, None)
        if dataset.supports_prefetch:
            dataset.prefetch(range(count))
        assert len(dataset) == count == len(dataset.sizes)
        for sentence, size in zip(map(dataset.__getitem__, range(count)), dataset.sizes, strict=True):
            assert len(sentence) == size >= 1 and 0 <= sentence.min() <= sentence.max() < 50
