"""An optimizer's saved state by parameter name, and back."""

import pytest
import torch

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.optim.saved_state import by_name, cut_flat, is_flat, join_flat, saved_state

PARAMETERS = [("a", (2, 3)), ("b", ()), ("c", (4,))]  # 11 numbers
VECTOR = {"step": 5, "exp_avg": torch.arange(11.0)}
FLAT = {"state": {0: VECTOR}, "param_groups": [{"lr": 0.1, "params": [0]}], "loss_scale": 4.0}


def test_a_vector_is_cut_in_the_order_of_the_parameters():
    named = by_name(FLAT, PARAMETERS)
    assert named["a"]["exp_avg"].tolist() == [[0, 1, 2], [3, 4, 5]] and named["b"]["exp_avg"].item() == 6
    assert named["c"]["exp_avg"].tolist() == [7, 8, 9, 10] and all(entry["step"] == 5 for entry in named.values())
    assert torch.equal(join_flat(named, PARAMETERS)["exp_avg"], VECTOR["exp_avg"])
    assert join_flat(named, PARAMETERS)["step"] == 5


def test_both_layouts_keep_all_else():
    named = by_name(FLAT, PARAMETERS)
    each = saved_state(named, FLAT, PARAMETERS, flat=False)
    assert each["loss_scale"] == 4.0 and each["param_groups"] == [{"lr": 0.1, "params": [0, 1, 2]}]
    assert not is_flat(each, PARAMETERS) and is_flat(FLAT, PARAMETERS) and set(each["state"]) == {0, 1, 2}
    back = saved_state(by_name(each, PARAMETERS), each, PARAMETERS, flat=True)
    assert back["param_groups"] == FLAT["param_groups"] and torch.equal(back["state"][0]["exp_avg"], VECTOR["exp_avg"])
    assert FLAT["param_groups"] == [{"lr": 0.1, "params": [0]}]


def test_what_has_no_moments_gets_none_or_0():
    named = by_name(FLAT, PARAMETERS)
    del named["b"]
    assert set(saved_state(named, FLAT, PARAMETERS, flat=False)["state"]) == {0, 2}
    assert join_flat(named, PARAMETERS)["exp_avg"][6] == 0 and join_flat({}, PARAMETERS) == {}
    assert cut_flat({}, PARAMETERS) == {}


def test_a_count_of_updates_in_a_tensor_is_no_moment():
    named = {name: {"step": torch.tensor(3.0), "exp_avg": torch.ones(shape)} for name, shape in PARAMETERS}
    joined = join_flat(named, PARAMETERS)
    assert joined["step"] == 3 and joined["step"].dim() == 0 and joined["exp_avg"].shape == (11,)


def test_moments_of_other_shapes_make_no_vector():
    with pytest.raises(UserError, match="`--fp16-no-flatten-grads`"):
        join_flat({"a": {"exp_avg_sq_row": torch.ones(2)}}, PARAMETERS)


def test_groups_stay_as_they_are_or_are_refused():
    groups = [{"lr": 0.1, "params": [0, 1]}, {"lr": 0.2, "params": [2]}]
    saved = {"state": {index: {"step": index} for index in range(3)}, "param_groups": groups}
    named = by_name(saved, PARAMETERS)
    assert saved_state(named, saved, PARAMETERS, flat=False) == saved
    with pytest.raises(UserError, match="several groups"):
        saved_state(named, saved, PARAMETERS, flat=True)
