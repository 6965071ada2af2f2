"""Names of a checkpoint's files; lists of shards that are damaged lead nowhere else."""

import math

import pytest

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.assemble import load_mapped, load_shared_part
from fairseq_mtmoe.checkpoints.layout import expert_folder, new_id, shards_of, shared_part_of
from fairseq_mtmoe.errors import UserError
from tests.helpers.states import files_of


def damage_list(experts):
    yield {**experts, "id": "../../elsewhere"}
    yield {**experts, "num_experts": 5}
    yield {**experts, "files": experts["files"][1:]}
    yield {**experts, "files": [{**experts["files"][0], "name": "../0-1.pt"}, experts["files"][1]]}
    yield {**experts, "files": [{**experts["files"][0], "count": "2"}, experts["files"][1]]}
    yield {**experts, "num_experts": math.inf, "files": [{**experts["files"][0], "count": math.inf}]}
    yield {key: value for key, value in experts.items() if key != "keys"}
    yield None


def test_a_damaged_list_of_shards_leads_nowhere_else(parts):
    shared_part = load_shared_part(parts)
    for experts in damage_list(shared_part["experts"]):
        file_io.save({**shared_part, "experts": experts}, str(parts))
        for load in (load_shared_part, load_mapped):
            with pytest.raises(UserError, match="but its list of them is damaged"):
                load(parts)
    file_io.save({**shared_part, "experts": {"version": 2, "places": []}}, str(parts))
    with pytest.raises(UserError, match="newer version"):
        load_shared_part(parts)


def test_names_of_saves_differ():
    assert len({new_id() for _ in range(100)}) == 100


def test_a_shard_knows_its_shared_part(parts):
    shared_part = load_shared_part(parts)
    assert list(shards_of(parts, shared_part)) == files_of(parts)
    assert {shared_part_of(path) for path in (parts, *files_of(parts))} == {parts}
    assert shared_part_of(parts.parent / "0-3.pt") == parts.parent / "0-3.pt"
    with pytest.raises(UserError, match=r"must end in `\.pt`"):
        expert_folder(parts.parent / "checkpoint")
