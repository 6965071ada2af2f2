"""Pairs, sizes and tiers of a data directory."""

import json
import shutil

import pytest

from fairseq_mtmoe.evaluation import test_sets
from tests.helpers import untrained
from tests.helpers.refused import refused


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return untrained.make_data(tmp_path_factory.mktemp("sets") / "data")


def test_sizes_of_every_pair(data):
    assert test_sets.sizes_of(str(data), "test") == untrained.TEST_SIZES
    assert test_sets.sizes_of(f"{data}:{data}", "train") == untrained.PAIRS  # of the first folder


def test_codes_with_a_region_are_languages(tmp_path, data):
    for old, new in (("en", "en_XX"), ("aa", "aa_AA")):
        for kind in ("idx", "bin"):
            shutil.copy(data / f"test.en-aa.{old}.{kind}", tmp_path / f"test.en_XX-aa_AA.{new}.{kind}")
    assert test_sets.sizes_of(str(tmp_path), "test") == {"en_XX-aa_AA": 10}


def test_an_unknown_subset_or_folder_is_said_in_one_sentence(data, tmp_path):
    with refused("--subset"):
        test_sets.sizes_of(str(data), "dev")
    for folder in (tmp_path, tmp_path / "nothing"):
        with refused():
            test_sets.sizes_of(str(folder), "test")


def test_pairs_are_the_wanted_ones_else_those_trained_on_else_all():
    sizes = {"en-aa": 1, "en-bb": 2, "en-cc": 3}
    assert test_sets.choose_pairs(sizes, ["en-bb", "aa-en", "en-zz"], []) == ["en-bb", "aa-en"]
    assert test_sets.choose_pairs(sizes, [], []) == ["en-aa", "en-bb", "en-cc"]
    assert test_sets.choose_pairs(sizes, ["en-zz"], []) == ["en-aa", "en-bb", "en-cc"]
    assert test_sets.choose_pairs(sizes, ["en-bb"], ["cc-en", "en-aa", "cc-en"]) == ["cc-en", "en-aa"]
    with refused("--lang-pairs"):
        test_sets.choose_pairs(sizes, [], ["en-aa", "en-zz"])


def test_tiers_follow_the_training_data_of_all_shards(data):
    assert test_sets.tiers_of(str(data), ["en-aa", "bb-en", "en-cc", "en-zz"]) == {
        "en-aa": "high", "bb-en": "mid", "en-cc": "low",
    }  # fmt: skip


def test_shards_add_up(data, tmp_path):
    second = tmp_path / "second"
    second.mkdir()
    for path in data.glob("train.en-cc.*"):
        shutil.copy(path, second)
    twelve = ":".join([str(data), *[str(second)] * 7])
    assert test_sets.tiers_of(twelve, ["en-aa", "en-cc"]) == {"en-aa": "high", "en-cc": "high"}


def test_tiers_of_a_directory_without_training_data(data, tmp_path):
    for path in data.glob("test.*"):
        shutil.copy(path, tmp_path)
    assert test_sets.tiers_of(str(tmp_path), ["en-aa"]) == {}
    (tmp_path / "tiers.json").write_text(json.dumps({"low": ["en-aa"]}))
    assert test_sets.tiers_of(str(tmp_path), ["en-aa"]) == {"en-aa": "low"}
