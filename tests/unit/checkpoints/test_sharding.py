"""A checkpoint's experts apart from the rest, and both together again."""

import copy

import pytest
import torch

from fairseq_mtmoe.checkpoints.sharding import count_experts, is_shared_part, join, split
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from tests.helpers.states import EXPERT, assert_same, local_parameters, local_state, placements, trained

FC1 = "decoder.layers.1.moe.experts.fc1_weight"


@pytest.mark.parametrize("flat", [False, True])
def test_the_shared_part_has_no_experts_and_the_content_nothing_else(flat):
    state, parameters = trained(4, flat)
    original = copy.deepcopy(state)
    placement = placements(4, 2)[1]
    local = local_state(state, parameters, placement)
    shared_part, content = split(local, placement, local_parameters(parameters, placement))
    assert_same(state, original)
    assert is_shared_part(shared_part) and not is_shared_part(state)
    for tensors in (
        shared_part["model"],
        shared_part["extra_state"]["ema"],
        shared_part["extra_state"]["ema_fp32_params"],
    ):
        assert tensors and not any(EXPERT in name for name in tensors)
    names = shared_part["experts"]["optimizer_names"]
    assert names == {index: name for index, (name, _) in enumerate(parameters)}
    moments = shared_part["last_optimizer_state"]
    assert moments["param_groups"][0]["params"] == list(names) and moments.get("loss_scale") == (
        128.0 if flat else None
    )
    with_moments = {names[index] for index in moments["state"]}
    assert with_moments and not any(EXPERT in name for name in with_moments)

    assert (content["first"], content["count"]) == (2, 2)
    for part in ("model", "ema", "ema_fp32_params", "optimizer"):
        assert len(content[part]) == 8 and all(EXPERT in name for name in content[part])
    assert torch.equal(content["model"][FC1], original["model"][FC1][2:])
    index = next(index for index, name in names.items() if name == FC1)
    if not flat:
        assert torch.equal(
            content["optimizer"][FC1]["exp_avg"], original["last_optimizer_state"]["state"][index]["exp_avg"][2:]
        )
    assert content["optimizer"][FC1]["exp_avg"].shape == (2, 24, 16) and content["optimizer"][FC1]["step"] == 2


def test_what_a_shared_part_saves_of_a_vector_is_no_more_than_its_own_part():
    state, parameters = trained(4, flat=True)
    shared_part, _ = split(state, ExpertPlacement(4, 0, 4), parameters)
    for entry in shared_part["last_optimizer_state"]["state"].values():
        assert entry["exp_avg"].untyped_storage().nbytes() == entry["exp_avg"].nbytes


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("flat_again", [False, True])
def test_both_layouts_of_moments_become_each_other(flat, flat_again):
    """Of the same model: fairseq loads what comes out, and nothing is lost on the way there and back."""
    state, parameters = trained(4, flat)
    everything = ExpertPlacement(4, 0, 4)
    there = join(*split(state, everything, parameters), parameters, flat_again)
    entries = there["last_optimizer_state"]["state"]
    assert (list(entries) == [0]) == flat_again
    assert there["last_optimizer_state"]["param_groups"][0]["params"] == list(
        range(1 if flat_again else len(parameters))
    )
    back = join(*split(there, everything, parameters), parameters, flat)
    if flat_again and not flat:  # a parameter that was never updated, such as an unused gate, has moments of 0
        kept = state["last_optimizer_state"]["state"]
        made = {index: entry for index, entry in back["last_optimizer_state"]["state"].items() if index not in kept}
        assert all(not entry["exp_avg"].any() for entry in made.values())
        back["last_optimizer_state"]["state"] = {index: back["last_optimizer_state"]["state"][index] for index in kept}
    assert_same(back, state)


def test_moments_that_are_not_the_parameters_are_refused():
    state, parameters = trained(4)
    with pytest.raises(UserError, match=f"must be of the {len(parameters) - 1} parameters that are trained"):
        split(state, ExpertPlacement(4, 0, 4), parameters[1:])
    flat_state, _ = trained(4, flat=True)
    with pytest.raises(UserError, match="numbers that are trained"):
        split(flat_state, ExpertPlacement(4, 0, 4), parameters[1:])
    for entry in state["last_optimizer_state"]["state"].values():
        entry["exp_avg_sq"] = entry["exp_avg_sq"].sum(-1)
    with pytest.raises(UserError, match="such as adam"):
        split(state, ExpertPlacement(4, 0, 4), parameters)
    state["last_optimizer_state"] = {"encoder": {}, "decoder": {}}
    with pytest.raises(UserError, match="must be that of one optimizer"):
        split(state, ExpertPlacement(4, 0, 4), parameters)


def test_a_run_that_saves_no_optimizer_has_shared_parts_without():
    state, parameters = trained(4)
    del state["last_optimizer_state"], state["extra_state"]["ema_fp32_params"]
    shared_part, content = split(state, ExpertPlacement(4, 0, 4), parameters)
    assert "optimizer" not in content and "ema_fp32_params" not in content
    assert_same(join(shared_part, content), state)


def test_moments_before_the_first_update_are_none():
    for flat in (False, True):
        state, parameters = trained(4, flat)
        state["last_optimizer_state"]["state"] = {}
        assert_same(join(*split(state, ExpertPlacement(4, 0, 4), parameters)), state)


def test_experts_are_counted():
    assert count_experts(trained(8)[0]["model"]) == 8 and count_experts({"encoder.fc1.weight": torch.ones(3)}) == 0
