import copy
import math
import shutil

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.assemble import ShardReader, load_local, load_shared_part, whole
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile
from fairseq_mtmoe.checkpoints.sharding import has_experts, join, split
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from tests.helpers import states
from tests.helpers.checkpoint_files import change
from tests.helpers.refused import refused
from tests.helpers.states import EXPERT, assert_same, files_of, read_whole, trained, write_in_parts

FC1 = "decoder.layers.1.moe.experts.fc1_weight"
ALL = ExpertPlacement(4, 0, 4)


def local(path, placement, parameters, flat=False):
    with CheckpointFile(path) as file:
        return load_local(file, placement, states.local_parameters(parameters, placement), flat)


@pytest.mark.parametrize("flat", [False, True])
def test_the_shared_part_has_no_experts_and_the_content_nothing_else(flat):
    state, parameters = trained(4, flat)
    original = copy.deepcopy(state)
    placement = states.placements(4, 2)[1]
    local = states.local_state(state, parameters, placement)
    shared_part, content = split(local, placement, states.local_parameters(parameters, placement))
    assert_same(state, original)
    for tensors in (shared_part["model"], *(shared_part["extra_state"][name] for name in ("ema", "ema_fp32_params"))):
        assert tensors and not any(EXPERT in name for name in tensors)
    names, moments = shared_part["experts"]["optimizer_names"], shared_part["last_optimizer_state"]
    assert moments["state"] and not any(EXPERT in names[index] for index in moments["state"])
    for entry in moments["state"].values():  # and no more of a vector than its own part
        assert entry["exp_avg"].untyped_storage().nbytes() == entry["exp_avg"].nbytes
    for part in ("model", "ema", "ema_fp32_params", "optimizer"):
        assert len(content[part]) == 8 and all(EXPERT in name for name in content[part])


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("flat_again", [False, True])
def test_both_layouts_of_moments_become_each_other(flat, flat_again):
    state, parameters = trained(4, flat)
    there = join(*split(state, ALL, parameters), parameters, flat_again)
    assert (list(there["last_optimizer_state"]["state"]) == [0]) == flat_again
    back = join(*split(there, ALL, parameters), parameters, flat)
    if flat_again and not flat:  # a parameter that was never updated, such as an unused gate, has moments of 0
        kept, entries = state["last_optimizer_state"]["state"], back["last_optimizer_state"]["state"]
        assert all(not entry["exp_avg"].any() for index, entry in entries.items() if index not in kept)
        back["last_optimizer_state"]["state"] = {index: entries[index] for index in kept}
    assert_same(back, state)


def test_moments_that_are_not_the_parameters_are_refused():
    state, parameters = trained(4)
    for wrong in (state, trained(4, flat=True)[0], {**state, "last_optimizer_state": {"encoder": {}, "decoder": {}}}):
        with refused("--reset-optimizer"):
            split(wrong, ALL, parameters[1:])
    for entry in state["last_optimizer_state"]["state"].values():
        entry["exp_avg_sq"] = entry["exp_avg_sq"].sum(-1)
    with refused("--optimizer"):
        split(state, ALL, parameters)


def test_what_a_run_does_not_save_its_parts_do_not_have_either():
    state, parameters = trained(4)
    state["last_optimizer_state"]["state"] = {}  # before the first update
    assert_same(join(*split(state, ALL, parameters)), state)
    del state["last_optimizer_state"], state["extra_state"]["ema_fp32_params"]
    shared_part, content = split(state, ALL, parameters)
    assert "optimizer" not in content and "ema_fp32_params" not in content
    assert_same(join(shared_part, content), state)


@pytest.mark.parametrize(("num_experts", "writers", "flat"), [(4, 1, True), (4, 4, False), (8, 2, True)])
def test_what_some_processes_wrote_any_others_read(tmp_path, num_experts, writers, flat):
    """Also from one file, as stock fairseq writes it."""
    state, parameters = trained(num_experts, flat)
    paths = tmp_path / "parts.pt", tmp_path / "one.pt"
    write_in_parts(paths[0], state, parameters, writers)
    assert len(files_of(paths[0])) == writers
    torch.save(state, paths[1])
    for path in paths:
        for placement in (one for readers in (1, 2, 4) for one in states.placements(num_experts, readers)):
            found = local(path, placement, parameters, flat)
            assert_same(found, states.local_state(state, parameters, placement))
        assert_same(read_whole(path), state)


def test_another_number_of_experts_is_refused_and_a_dense_checkpoint_taken_as_it_is(checkpoint, parts, tmp_path):
    state, parameters = checkpoint
    torch.save(state, tmp_path / "whole.pt")
    placement = ExpertPlacement(8, 0, 2)
    for path in (parts, tmp_path / "whole.pt"):
        with refused("--num-experts", path.name):
            local(path, placement, parameters)
    dense = {"model": {"encoder.fc1.weight": torch.ones(2)}, "last_optimizer_state": {"state": {}, "param_groups": []}}
    torch.save(dense, tmp_path / "dense.pt")
    assert_same(local(tmp_path / "dense.pt", ExpertPlacement(4, 0, 2), [], True), dense)
    assert "last_optimizer_state" not in whole(tmp_path / "dense.pt", dense, ["model"])
    assert [has_experts(one) for one in (dense, state, load_shared_part(parts))] == [False, True, True]


def test_a_file_that_is_missing_or_of_other_experts_is_refused(parts, tmp_path):
    (file, second), shared_part = files_of(parts), load_shared_part(parts)

    def read(count=1):
        return ShardReader(parts, shared_part).read(0, count)

    second.unlink()
    with refused("2-3.pt", "checkpoint_last.experts"):
        read(4)
    content = read(2)  # nobody else needs it
    change(file, 500)
    with refused("0-1.pt"):
        read()
    write_in_parts(tmp_path / "other.pt", *trained(4, seed=2), 2)
    shutil.copy(files_of(tmp_path / "other.pt")[0], file)
    with refused("0-1.pt", "checkpoint_last.pt"):
        read()
    content["model"][FC1] = content["model"][FC1][:1].clone()
    shared_part["experts"]["files"][0]["sha256"] = file_io.save(content, str(file))
    with refused("0-1.pt", "checkpoint_last.pt"):
        read()


def test_a_damaged_list_of_shards_leads_nowhere_else(parts):
    shared_part = load_shared_part(parts)
    whole_list = shared_part["experts"]
    first, second = whole_list["files"]
    wrong = [[second], [second, first], *([{**first, **of}, second] for of in ({"name": "../0-1.pt"}, {"first": 1}))]
    wrong.append([{**first, "count": "2"}, second])
    endless = {"num_experts": math.inf, "files": [{**first, "count": math.inf}]}
    wrong_lists = [{"id": "../../elsewhere"}, {"num_experts": 5}, endless, *({"files": files} for files in wrong)]
    without_keys = {key: value for key, value in whole_list.items() if key != "keys"}
    for experts in (None, without_keys, *({**whole_list, **one} for one in wrong_lists)):
        file_io.save({**shared_part, "experts": experts}, str(parts))
        with refused("checkpoint_last.pt"):
            load_shared_part(parts, mapped=True)
    file_io.save({**shared_part, "experts": {"version": 2, "places": []}}, str(parts))
    with pytest.raises(UserError, match="newer version"):
        load_shared_part(parts)
