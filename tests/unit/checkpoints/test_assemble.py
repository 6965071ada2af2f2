"""What some processes save, any others read: each its own experts, or one all of them."""

import pytest
import torch

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.assemble import load_local, load_mapped, load_shared_part, localize, whole
from fairseq_mtmoe.checkpoints.file_io import peek
from fairseq_mtmoe.checkpoints.sharding import has_experts
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from tests.helpers.states import (
    EXPERT,
    assert_same,
    files_of,
    local_parameters,
    local_state,
    placements,
    trained,
    write_in_parts,
)

FC1 = "decoder.layers.1.moe.experts.fc1_weight"


@pytest.mark.parametrize(("num_experts", "writers"), [(4, 1), (4, 2), (4, 4), (8, 2), (8, 4)])
@pytest.mark.parametrize("flat", [False, True])
def test_what_some_processes_wrote_any_others_read(tmp_path, num_experts, writers, flat):
    state, parameters = trained(num_experts, flat)
    path = tmp_path / "checkpoint_last.pt"
    write_in_parts(path, state, parameters, writers)
    assert len(files_of(path)) == writers
    for readers in (1, 2, 4):
        for placement in placements(num_experts, readers):
            expected = local_state(state, parameters, placement)
            local = localize(path, load_shared_part(path), placement, local_parameters(parameters, placement), flat)
            assert_same(local, expected)
            assert_same(load_local(path, placement, local_parameters(parameters, placement), flat), expected)
    assert_same(whole(path, load_shared_part(path)), state)


@pytest.mark.parametrize("flat", [False, True])
def test_a_whole_checkpoint_gives_every_process_its_share(tmp_path, flat):
    state, parameters = trained(4, flat)
    path = str(tmp_path / "checkpoint_last.pt")
    torch.save(state, path)  # as stock fairseq, and this project before it had parts
    for placement in (*placements(4, 2), *placements(4, 1)):
        expected = local_state(state, parameters, placement)
        local = local_parameters(parameters, placement)
        assert_same(localize(path, load_shared_part(path), placement, local, flat), expected)
        assert_same(load_local(path, placement, local, flat), expected)
    assert_same(whole(path, load_shared_part(path)), state)


def test_a_run_goes_on_in_the_other_precision(tmp_path):
    """From float32 with a moment per parameter to fp16 with one vector, in other processes."""
    state, parameters = trained(4)
    write_in_parts(tmp_path / "a.pt", state, parameters, 4)
    placement = placements(4, 2)[1]
    local = local_parameters(parameters, placement)
    moments = load_local(tmp_path / "a.pt", placement, local, flat=True)["last_optimizer_state"]
    vector = moments["state"][0]["exp_avg"]
    assert len(vector) == sum(shape.numel() for _, shape in local) and moments["state"][0]["step"] == 2
    pieces = dict(zip((name for name, _ in local), vector.split([s.numel() for _, s in local]), strict=True))
    expected = local_state(state, parameters, placement)["last_optimizer_state"]["state"]
    index = [name for name, _ in local].index(FC1)
    assert torch.equal(pieces[FC1].view(local[index][1]), expected[index]["exp_avg"])


def test_counts_of_updates_in_tensors_travel(tmp_path):
    """As torch's own Adam has them, unlike fairseq's."""
    state, parameters = trained(4)
    for entry in state["last_optimizer_state"]["state"].values():
        entry["step"] = torch.tensor(float(entry["step"]))
    write_in_parts(tmp_path / "a.pt", state, parameters, 2)
    assert_same(whole(tmp_path / "a.pt", load_shared_part(tmp_path / "a.pt")), state)


def test_another_number_of_experts_is_refused(checkpoint, parts, tmp_path):
    state, parameters = checkpoint
    torch.save(state, tmp_path / "whole.pt")
    for path in (parts, tmp_path / "whole.pt"):
        for placement in (ExpertPlacement(8, 0, 2), ExpertPlacement(2, 0, 2)):
            with pytest.raises(UserError, match="`--num-experts` must be 4 to go on from"):
                load_local(path, placement, local_parameters(parameters, placement), False)


def test_a_dense_checkpoint_is_taken_as_it_is(tmp_path):
    state = {"model": {"encoder.fc1.weight": torch.ones(2)}, "last_optimizer_state": {"state": {}, "param_groups": []}}
    torch.save(state, tmp_path / "dense.pt")
    assert_same(load_local(tmp_path / "dense.pt", ExpertPlacement(4, 0, 2), [], True), state)
    assert_same(whole(tmp_path / "dense.pt", state), state)
    assert "last_optimizer_state" not in whole(tmp_path / "dense.pt", state, ["model"])


def test_experts_are_seen_without_reading(checkpoint, parts, tmp_path):
    file_io.save(checkpoint[0], str(tmp_path / "whole.pt"))
    file_io.save({"model": {"encoder.fc1.weight": torch.ones(2)}}, str(tmp_path / "dense.pt"))
    found = {
        name: has_experts(peek(tmp_path / f"{name}.pt") or {}) for name in ("checkpoint_last", "whole", "dense", "none")
    }
    assert found == {"checkpoint_last": True, "whole": True, "dense": False, "none": False}


def test_a_missing_checkpoint_is_one_sentence(tmp_path):
    for load in (load_shared_part, load_mapped, lambda path: load_local(path, ExpertPlacement(4, 0, 2), [], False)):
        with pytest.raises(UserError, match="there is none"):
            load(tmp_path / "none.pt")


def test_keys_of_the_helpers_are_those_of_the_model(checkpoint):
    assert sum(EXPERT in key for key in checkpoint[0]["model"]) == 8
