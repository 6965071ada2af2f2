"""Finding pairs and their shards, sizes of all shards at the start, and one sentence for what is wrong."""

import shutil

import numpy as np
import pytest

from fairseq_mtmoe.data.translation.pairs import PairLoader
from fairseq_mtmoe.errors import UserError
from tests.helpers.digits import digit_dictionary, digit_task, make_digit_corpus, write_digits


def loader(data, split="train", combine=False, **options):
    return PairLoader(digit_task(data, **options).data_manager, split, combine)


@pytest.fixture
def shards(tmp_path):
    """Three shards of different sizes; `cc` is only in the last."""
    first = make_digit_corpus(tmp_path / "first", seed=1, train=100, targets="aa,bb")
    second = make_digit_corpus(tmp_path / "second", seed=2, train=60, targets="aa")
    third = make_digit_corpus(tmp_path / "third", seed=3, train=80)
    for path in (third / "dict.cc.txt", *third.glob("valid.en-cc.*")):
        shutil.copy(path, first)
    return ":".join(map(str, (first, second, third)))


def test_the_sizes_of_all_shards_are_known_before_one_is_loaded(shards):
    found = loader(shards)
    assert found.shard_sizes == [[100, 60, 80], [25, 20], [8]]
    assert [len(dataset) for dataset in found.load((1, 1, 0))] == [60, 20, 8]
    assert loader(shards, "valid").shard_sizes == [[60], [60], [60]]


def test_data_of_the_reversed_pair_serves_too(digits):
    found = loader(digits, lang_pairs="aa-en")
    source, target = found.load()[0][0]["source"], found.load()[0][0]["target"]
    assert found.shard_sizes == [[200]]
    assert source.tolist()[1:] == target.tolist()  # a copy, behind the language token


@pytest.mark.parametrize(("upsample", "size"), [(1, 130), (3, 330)])
def test_combined_splits_count_together(upsample, size, tmp_path):
    data = make_digit_corpus(tmp_path, train=100, targets="aa")
    for lang in ("en", "aa"):
        write_digits(f"{data}/train1.en-aa.{lang}", [np.array([1, 2])] * 30, digit_dictionary())
    combined = loader(data, combine=True, lang_pairs="en-aa", upsample_primary=upsample)
    assert combined.shard_sizes == [[size]] and len(combined.load()[0]) == size
    assert loader(data, lang_pairs="en-aa", upsample_primary=upsample).shard_sizes == [[100]]


def test_extra_data_is_for_training_only(digits, tmp_path):
    mined = make_digit_corpus(tmp_path / "mined", train=40, targets="bb")
    options = {"extra_data": str({"mined": str(mined)}), "extra_lang_pairs": "{'mined': 'en-bb'}"}
    assert [pair.key for pair in loader(digits, **options).pairs][-1] == "mined:en-bb"
    assert loader(digits, **options).shard_sizes[-1] == [10]
    assert len(loader(digits, "valid", **options).pairs) == 3


def test_a_pair_without_data_and_sides_of_different_length_are_refused(digits, tmp_path):
    copy = shutil.copytree(digits, tmp_path / "data")
    write_digits(f"{copy}/train.en-bb.bb", [np.array([1, 2])], digit_dictionary())
    with pytest.raises(UserError, match="must hold the same number of sentences, but hold 50 and 1"):
        loader(copy)
    (copy / "train.en-bb.bb.idx").unlink()
    with pytest.raises(UserError, match=r"The pair en-bb has no train data in .*: there is no train.en-bb.en.idx"):
        loader(copy)


@pytest.mark.parametrize("suffix", ["bin", "idx"])
def test_a_truncated_shard_is_refused_before_anything_is_loaded(suffix, shards):
    path = shards.split(":")[2] + f"/train.en-aa.aa.{suffix}"
    with open(path, "rb+") as file:
        file.truncate(100)
    with pytest.raises(UserError, match="must be a whole file, but is truncated"):
        loader(shards)
