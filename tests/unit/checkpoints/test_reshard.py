"""Experts in other files than before."""

import copy

import pytest
import torch

from fairseq_mtmoe.checkpoints import reshard
from fairseq_mtmoe.checkpoints.assemble import load_shared_part, whole
from fairseq_mtmoe.checkpoints.layout import expert_folder
from fairseq_mtmoe.errors import UserError
from tests.helpers.states import assert_same, trained, write_in_parts


def names_of(path):
    return sorted(file.name for file in expert_folder(path).glob("*/*"))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("whole_before", [False, True])
def test_parts_of_any_size_hold_the_same(tmp_path, flat, whole_before):
    """Also where one file of the source becomes several, and where several become one."""
    state, parameters = trained(8, flat)
    source = tmp_path / "in.pt"
    if whole_before:
        torch.save(state, source)
    else:
        write_in_parts(source, state, parameters, 4)
    for size, names in ((8, ["0-7.pt"]), (3, ["0-2.pt", "3-5.pt", "6-7.pt"]), (1, [f"{i}-{i}.pt" for i in range(8)])):
        target = tmp_path / f"out{size}.pt"
        assert reshard.write_in_parts(source, target, size) == len(names) and names_of(target) == names
        assert_same(whole(target, load_shared_part(target)), state)
        reshard.write_whole(target, tmp_path / "single.pt")
        assert_same(load_shared_part(tmp_path / "single.pt"), state)


def test_a_file_of_some_experts_holds_no_bytes_of_others(tmp_path):
    state, _ = trained(8, flat=True)
    torch.save(state, tmp_path / "in.pt")
    reshard.write_in_parts(tmp_path / "in.pt", tmp_path / "eight.pt", 8)
    reshard.write_in_parts(tmp_path / "in.pt", tmp_path / "one.pt", 1)
    sizes = [
        file.stat().st_size for path in ("eight.pt", "one.pt") for file in expert_folder(tmp_path / path).glob("*/*")
    ]
    values = sum(v.nbytes for k, v in state["model"].items() if ".moe.experts." in k) / 8 * (1 + 1 + 2 + 2 + 2)
    assert all(size < 1.2 * values + 30_000 for size in sizes[1:]) and sizes[0] > 8 * values


@pytest.mark.parametrize("shared", [True, False])
def test_trained_parameters_are_found_in_a_models_state(shared):
    """fairseq saves shared embeddings once under several names, from a GPU several times."""
    state, parameters = trained(4, share_all_embeddings=shared, share_decoder_input_output_embed=False)
    assert reshard.parameters_of(state["model"]) == parameters
    model = {name: value.clone() for name, value in state["model"].items()}
    assert reshard.parameters_of(model) == parameters


def test_moments_that_cannot_be_told_apart_are_refused(tmp_path):
    state, _ = trained(4)
    frozen = copy.deepcopy(state)
    frozen["last_optimizer_state"]["param_groups"][0]["params"].pop()
    other = copy.deepcopy(state)
    other["last_optimizer_state"]["state"][0]["exp_avg"] = torch.zeros(3)
    for wrong in (frozen, other):
        torch.save(wrong, tmp_path / "in.pt")
        with pytest.raises(UserError, match="must hold the optimizer's moments of all parameters"):
            reshard.write_in_parts(tmp_path / "in.pt", tmp_path / "out.pt", 2)
    assert not (tmp_path / "out.pt").exists() and not expert_folder(tmp_path / "out.pt").exists()
    del frozen["last_optimizer_state"]
    torch.save(frozen, tmp_path / "in.pt")
    reshard.write_in_parts(tmp_path / "in.pt", tmp_path / "out.pt", 2)
    assert_same(whole(tmp_path / "out.pt", load_shared_part(tmp_path / "out.pt")), frozen)


def test_a_disk_that_is_full_leaves_what_was_there(tmp_path, monkeypatch):
    state, parameters = trained(4)
    source, target = tmp_path / "in.pt", tmp_path / "out.pt"
    write_in_parts(source, state, parameters, 2)
    write_in_parts(target, state, parameters, 1)
    save = reshard.file_io.save

    def save_on_a_full_disk(content, path):
        if path == str(target) or path.endswith("1-1.pt"):
            raise UserError("No space left on device")
        return save(content, path)

    monkeypatch.setattr(reshard.file_io, "save", save_on_a_full_disk)
    for size in (1, 2):
        with pytest.raises(UserError, match="No space left"):
            reshard.write_in_parts(source, target, size)
        with pytest.raises(UserError, match="No space left"):
            reshard.write_in_parts(source, tmp_path / "other.pt", 1)
    assert names_of(target) == ["0-3.pt"] and not expert_folder(tmp_path / "other.pt").exists()
    assert_same(whole(target, load_shared_part(target)), state)
