"""An optimizer's saved state by parameter name, and back; from and into optimizers it is in `sparsify`'s tests."""

import torch

from fairseq_mtmoe.checkpoints.optimizer_state import OptimizerState, is_flat
from tests.helpers.refused import refused

PARAMETERS = [("a", (2, 3)), ("b", ()), ("c", (4,))]  # 11 numbers
VECTOR = {"step": 5, "exp_avg": torch.arange(11.0)}
FLAT = {"state": {0: VECTOR}, "param_groups": [{"lr": 0.1, "params": [0]}], "loss_scale": 4.0}


def named(saved=FLAT):
    return OptimizerState.from_saved(saved, PARAMETERS)


def test_both_layouts_become_each_other_and_keep_all_else():
    state = named()
    assert state["a"]["exp_avg"].tolist() == [[0, 1, 2], [3, 4, 5]] and state["b"]["exp_avg"].item() == 6
    assert state["c"]["exp_avg"].tolist() == [7, 8, 9, 10] and all(entry["step"] == 5 for entry in state.values())
    each = state.to_saved(FLAT, PARAMETERS, flat=False)
    assert each["loss_scale"] == 4.0 and each["param_groups"] == [{"lr": 0.1, "params": [0, 1, 2]}]
    assert not is_flat(each, PARAMETERS) and is_flat(FLAT, PARAMETERS) and set(each["state"]) == {0, 1, 2}
    back = named(each).to_saved(each, PARAMETERS, flat=True)
    assert back["param_groups"] == FLAT["param_groups"] == [{"lr": 0.1, "params": [0]}]
    assert torch.equal(back["state"][0]["exp_avg"], VECTOR["exp_avg"]) and back["state"][0]["step"] == 5


def test_moments_of_other_shapes_are_named_and_make_no_vector():
    state = OptimizerState({"a": {"exp_avg": torch.ones(2, 3)}, "c": {"exp_avg_sq_row": torch.ones(2)}})
    assert state.misfit(PARAMETERS) == "c" and state.misfit(PARAMETERS[:2]) is None
    with refused("c", "--fp16-no-flatten-grads"):
        state.to_saved(FLAT, PARAMETERS, flat=True)


def test_groups_stay_as_they_are_or_are_refused():
    groups = [{"lr": 0.1, "params": [0, 1]}, {"lr": 0.2, "params": [2]}]
    saved = {"state": {index: {"step": index} for index in range(3)}, "param_groups": groups}
    assert named(saved).to_saved(saved, PARAMETERS, flat=False) == saved
    with refused():
        named(saved).to_saved(saved, PARAMETERS, flat=True)
