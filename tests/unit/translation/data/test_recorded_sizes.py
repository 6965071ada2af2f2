"""A directory stands for its shards; by `sizes.json` sampling follows the sizes of all, of which one is there yet."""

import json
from pathlib import Path

import pytest

from fairseq_mtmoe.translation.data.pairs import PairLoader
from fairseq_mtmoe.translation.data.recorded_sizes import with_shards
from tests.helpers.digits import digit_task, make_digit_corpus
from tests.helpers.refused import refused

RECORD = {"shards": ["shard0", "shard1"], "train": {"en-aa": [100, 60], "en-bb": [25]}}


@pytest.fixture
def data(tmp_path):
    """Two shards with a record of their sizes; `bb` is in the first alone."""
    for number, (size, targets) in enumerate(((100, "aa,bb"), (60, "aa"))):
        folder = make_digit_corpus(tmp_path / f"shard{number}", seed=number, train=size, targets=targets)
        (folder / "sizes.json").write_text(json.dumps(RECORD))
    return tmp_path


def loader(data, *shards, pairs="en-aa,en-bb"):
    folders = ":".join(str(data / shard) for shard in shards or ("shard0", "shard1"))
    return PairLoader(digit_task(folders, lang_pairs=pairs).data_manager, "train", True)


def test_the_record_agrees_with_what_the_index_files_say(data):
    recorded = loader(data)
    for path in data.glob("*/sizes.json"):
        path.unlink()
    assert recorded.shard_sizes == loader(data).shard_sizes == [[100, 60], [25]]
    assert [pair.folders for pair in recorded.pairs] == [pair.folders for pair in loader(data).pairs]


def test_sizes_are_known_of_shards_that_are_not_there(data):
    for path in (data / "shard1").glob("train.*"):
        path.unlink()
    found = loader(data)
    assert found.shard_sizes == [[100, 60], [25]]
    assert [len(dataset) for dataset in found.load()] == [100, 25]
    with refused("shard1"):
        found.load((1, 0))


def test_what_is_not_recorded_is_counted(data):
    extra = make_digit_corpus(data / "elsewhere", seed=5, train=80, targets="aa")
    assert loader(data, "shard0", extra, pairs="en-aa").shard_sizes == [[100, 80]]


def test_other_data_than_is_recorded_and_a_damaged_record_are_refused(data):
    path = data / "shard0" / "sizes.json"
    path.write_text(json.dumps({**RECORD, "train": {"en-aa": [90, 60]}}))
    with refused("shard0"):
        loader(data, pairs="en-aa").load()
    for damage in ({"shards": "a"}, *({"train": {"en-aa": sizes}} for sizes in ([1, 2, 3], [0]))):
        path.write_text(json.dumps(RECORD | damage))
        with refused("sizes.json"):
            loader(data)


def test_a_directory_stands_for_its_shards_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    right = ":".join(f"data/shard{number}" for number in range(11))
    for name in (*right.split(":"), "other/raw", "recorded/shard0", "recorded/shard1"):
        Path(name).mkdir(parents=True)
    assert with_shards("data") == with_shards(right) == right
    assert with_shards("other:data") == f"other:{right}"
    assert [with_shards(name) for name in ("nothing", "s3://data|b")] == ["nothing", "s3://data|b"]
    Path("data/test.en-de.de.idx").touch()  # data of its own
    assert with_shards("data") == "data"
    # The record of sizes names them all, so that one that was not copied is missed.
    Path("recorded/shard0/sizes.json").write_text(json.dumps({"shards": ["shard0", "shard1", "shard2"], "train": {}}))
    assert with_shards("recorded") == "recorded/shard0:recorded/shard1:recorded/shard2"
