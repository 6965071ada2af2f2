"""A directory of shards stands for them."""

import json

from fairseq_mtmoe.data.translation.recorded_sizes import with_shards


def make(folder, *names):
    for name in names:
        (folder / name).mkdir(parents=True)
    return str(folder)


def test_a_directory_stands_for_its_shards_in_their_order(tmp_path):
    data = make(tmp_path / "data", *(f"shard{number}" for number in range(11)))
    right = ":".join(f"{data}/shard{number}" for number in range(11))
    other = make(tmp_path / "other", "raw")
    assert with_shards(data) == right
    assert with_shards(right) == right
    assert with_shards(f"{other}:{data}") == f"{other}:{right}"
    assert with_shards("nothing") == "nothing"
    assert with_shards(f"s3://{data}|b") == f"s3://{data}|b"


def test_the_record_of_sizes_names_them_all(tmp_path):
    """So that one that was not copied is missed."""
    data = make(tmp_path / "data", "shard0", "shard1")
    record = {"shards": ["shard0", "shard1", "shard2"], "train": {}}
    (tmp_path / "data" / "shard0" / "sizes.json").write_text(json.dumps(record))
    assert with_shards(data) == f"{data}/shard0:{data}/shard1:{data}/shard2"


def test_a_directory_with_data_of_its_own_stays(tmp_path):
    data = make(tmp_path / "data", "shard0")
    (tmp_path / "data" / "test.en-de.de.idx").touch()
    assert with_shards(data) == data
