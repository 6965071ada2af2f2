"""Finding pairs and their shards, sizes of all shards at the start, and one sentence for what is wrong."""

import shutil

import numpy as np
import pytest

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.translation.data.file_names import Side, find_side, indexed_sides, read_side_name, side_name
from fairseq_mtmoe.translation.data.pairs import PairLoader, training_sizes
from fairseq_mtmoe.translation.decode.test_sets import tiers_of
from tests.helpers.digits import digit_dictionary, digit_task, make_digit_corpus, write_digits
from tests.helpers.refused import refused


def loader(data, split="train", combine=False, **options):
    return PairLoader(digit_task(data, **options).data_manager, split, combine)


def test_the_sizes_of_all_shards_and_a_truncated_one_are_known_before_one_is_loaded(tmp_path):
    """Of three shards, of which the first lacks `cc` and the second has only `aa`."""
    first = make_digit_corpus(tmp_path / "first", seed=1, train=100, targets="aa,bb")
    second = make_digit_corpus(tmp_path / "second", seed=2, train=60, targets="aa")
    third = make_digit_corpus(tmp_path / "third", seed=3, train=80)
    shutil.copy(third / "dict.cc.txt", first)
    shards = f"{first}:{second}:{third}"
    found = loader(shards)
    assert found.shard_sizes == [[100, 60, 80], [25, 20], [8]]
    assert [len(dataset) for dataset in found.load((1, 1, 0))] == [60, 20, 8]
    path = third / "train.en-aa.aa.bin"
    path.write_bytes(path.read_bytes()[:100])
    with refused(path.name):
        loader(shards)


def test_both_directions_have_their_own_language_tokens_if_they_may_share_files(digits):
    options = {"encoder_langtok": "tgt", "decoder_langtok": True, "lang_pairs": "en-aa,aa-en"}
    alone = [dataset[0]["source"].tolist() for dataset in loader(digits, **options).load()]
    options["enable_reservsed_directions_shared_datasets"] = True
    shared = [dataset[0]["source"].tolist() for dataset in loader(digits, **options).load()]
    assert shared == alone and alone[0] != alone[1]


@pytest.mark.parametrize("options", [{}, {"encoder_langtok_last": True}, {"lang_tok_replacing_bos_eos": True}])
def test_a_truncated_source_keeps_its_language_token_and_its_end(digits, options):
    options |= {"decoder_langtok": True, "max_source_positions": 8}
    whole, cut = (loader(digits, truncate_source=on, **options) for on in (False, True))
    beyond = whole.load()[0]
    is_long = [number for number in range(len(beyond)) if len(beyond[number]["source"]) > 8]
    dataset, end = cut.load()[0], whole.manager.get_source_dictionary("en").eos()
    assert len(is_long) > 10
    for number in is_long:
        source, before = dataset[number]["source"].tolist(), beyond[number]["source"].tolist()
        assert len(source) == 8 == dataset.sizes[number][0]
        ends = [end, before[-1]] if "encoder_langtok_last" in options else [before[-1]]
        assert source == before[: 8 - len(ends)] + ends


def test_combined_splits_count_together(tmp_path):
    data = make_digit_corpus(tmp_path, train=100, targets="aa")
    for lang in ("en", "aa"):
        write_digits(f"{data}/train1.en-aa.{lang}", [np.array([1, 2])] * 30, digit_dictionary())
    combined = loader(data, combine=True, lang_pairs="en-aa", upsample_primary=3)
    assert combined.shard_sizes == [[330]] and len(combined.load()[0]) == 330
    assert loader(data, lang_pairs="en-aa", upsample_primary=3).shard_sizes == [[100]]
    task = digit_task(data, lang_pairs="en-aa")
    assert training_sizes(task.data_manager) == {"en-aa": 130}
    assert task.pair_tiers == tiers_of(str(data), ("en-aa",)) == {"en-aa": "high"}


def test_a_pair_without_data_and_sides_of_different_length_are_refused(digits, tmp_path):
    copy = shutil.copytree(digits, tmp_path / "data")
    write_digits(f"{copy}/train.en-bb.bb", [np.array([1, 2])], digit_dictionary())
    with refused("train.en-bb.en", "train.en-bb.bb"):
        loader(copy)
    (copy / "train.en-bb.bb.idx").unlink()
    with pytest.raises(UserError, match="en-bb"):
        loader(copy)


def test_files_are_found_by_the_parts_of_their_names(tmp_path):
    side = Side("test.v2", "en_XX", "zh_Hans", "zh_Hans")
    assert read_side_name(side_name(side.split, side.pair, side.lang)) == side
    others = ("train.en-de.en.bin", "valid.en-de.en", "dict.en.txt", "train.en.en.idx", "train.align.en-de.idx")
    for name in ("train.en-de.en.idx", "test.en-de.de.idx", *others):
        (tmp_path / name).touch()
    assert indexed_sides(tmp_path) == [Side("test", "en", "de", "de"), Side("train", "en", "de", "en")]
    for split, lang in (("test", "de"), ("valid", "en")):  # binarized, or text
        for pair in (("en", "de"), ("de", "en")):
            assert find_side(tmp_path, split, *pair, lang) == str(tmp_path / f"{split}.en-de.{lang}")
    assert find_side(tmp_path, "test", "en", "de", "en") is None
