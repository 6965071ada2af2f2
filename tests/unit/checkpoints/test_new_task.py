import copy

import pytest
import torch

from fairseq_mtmoe.checkpoints.assemble import load_shared_part
from fairseq_mtmoe.checkpoints.new_rows import with_rows
from fairseq_mtmoe.checkpoints.new_task import NewTask, Shapes, with_task
from fairseq_mtmoe.checkpoints.optimizer_state import OptimizerState
from fairseq_mtmoe.checkpoints.rewriting import save_with_experts
from fairseq_mtmoe.moe.gates import SOFTMAX_GATE_STD
from tests.helpers.models import TASKS, moe_model
from tests.helpers.refused import refused
from tests.helpers.states import assert_same, read_whole, trained, write_in_parts

GATED = {"expert_gates": "task"}
BEFORE = Shapes.of(moe_model(**GATED))
AFTER = Shapes.of(moe_model(**GATED, task_names=",".join([*TASKS, "dd"])))
GATE = "decoder.layers.1.moe.gate.weight"


def new_task(begins_as, **head):
    return NewTask(TASKS, begins_as, head, seed=1)


def extended(state, begins_as="bb"):
    return with_task(state, new_task(begins_as), BEFORE, AFTER)


def grown(name, value, begins_as=torch.clone):
    return torch.cat([value, begins_as(value[1:2])]) if name.endswith("gate.weight") else value


@pytest.mark.parametrize("flat", [False, True])
def test_a_row_begins_as_another_tasks_and_all_else_stays(flat):
    state, parameters = trained(flat=flat, **GATED)
    state["extra_state"]["best"] = 1.0  # another model begins its best validation anew
    before = copy.deepcopy(state)
    result = extended(state)
    assert_same(state, before)
    for larger in (result, with_rows(state, [[4]], [[4]])):
        assert "best" not in larger["extra_state"]
    for part in ("model", "ema", "ema_fp32_params"):
        old, new = (found["model"] if part == "model" else found["extra_state"][part] for found in (state, result))
        assert_same(dict(new), {name: grown(name, value) for name, value in old.items()}, "model")
    moments = OptimizerState.from_saved(state["last_optimizer_state"], parameters)
    larger = result["last_optimizer_state"]
    assert moments[GATE]["exp_avg"].any()
    for name, entry in OptimizerState.from_saved(larger, AFTER.parameters).items():
        for key, value in entry.items():
            right = torch.as_tensor(moments[name][key])
            right = grown(name, right, torch.zeros_like) if right.dim() else right
            assert torch.equal(torch.as_tensor(value), right), (name, key)
    assert larger.get("loss_scale") == state["last_optimizer_state"].get("loss_scale")


def test_several_are_their_mean_and_what_does_not_fit_is_refused():
    state, _ = trained(**GATED)
    rows = state["model"][GATE]
    for begins_as, right in (("mean", rows.mean(0)), ("aa,cc", (rows[0] + rows[2]) / 2)):
        torch.testing.assert_close(extended(state, begins_as)["model"][GATE][3], right)
    for name in ("xx", "mean,aa"):
        with refused("--embedding-from"):
            extended(state, name)
    state["model"][GATE] = rows[:2]
    with refused(GATE):
        extended(state)
    same = Shapes.of(moe_model())
    with refused("--finetune-from-model"):
        with_task(trained()[0], new_task("aa"), same, same)


@pytest.mark.parametrize("begins_as", ["random", "xavier"])
def test_what_is_drawn_has_its_distribution_and_is_the_same_in_averages(begins_as):
    embeddings, gate = "task_embeddings.weight", "layers.1.moe.gate.weight"
    tables = {embeddings: torch.ones(3, 600), gate: torch.ones(3, 10, 60)}
    before, after = (Shapes({key: torch.Size([n, *v.shape[1:]]) for key, v in tables.items()}, []) for n in (3, 4))
    result = with_task({"model": tables, "extra_state": {"ema": dict(tables)}}, new_task(begins_as), before, after)
    row = result["model"][embeddings][3]
    assert torch.equal(result["extra_state"]["ema"][embeddings][3], row)
    bound = (6 / 604) ** 0.5
    deviation = {"random": 0.02, "xavier": bound / 3**0.5}[begins_as]
    assert row.std() == pytest.approx(deviation, rel=0.1)
    assert (row.abs().max() <= bound) if begins_as == "xavier" else (row.abs().max() > 2.5 * deviation)
    assert result["model"][gate][3].std() == pytest.approx(SOFTMAX_GATE_STD, rel=0.1)


def test_a_head_gets_its_place_and_no_moments():
    trained, head = {"table": torch.ones(3, 2), "heads.a.weight": torch.ones(2)}, {"heads.b.weight": torch.arange(5.0)}
    moments = {index: {"exp_avg": value} for index, value in enumerate(trained.values())}
    saved = {"state": moments, "param_groups": [{"lr": 0.5, "params": [0, 1]}]}
    state = {"model": {**trained, "other": torch.ones(1)}, "last_optimizer_state": saved}
    shapes = {name: value.shape for name, value in trained.items()}
    larger = {**shapes, "table": torch.Size([4, 2]), "heads.b.weight": torch.Size([5])}
    before, after = (Shapes(found, list(found.items())) for found in (shapes, larger))
    result = with_task(state, new_task("aa", **head), before, after)
    assert list(result["model"]) == [*trained, *head, "other"]
    assert torch.equal(result["model"]["heads.b.weight"], head["heads.b.weight"])
    saved = result["last_optimizer_state"]
    assert saved["param_groups"] == [{"lr": 0.5, "params": [0, 1, 2]}] and set(saved["state"]) == {0, 1}


def test_a_checkpoint_in_parts_becomes_what_the_whole_one_becomes_and_other_moments_go(tmp_path):
    state, parameters = trained(**GATED)
    parts, out = tmp_path / "parts.pt", tmp_path / "out.pt"
    write_in_parts(parts, state, parameters, 2)
    save_with_experts(extended(load_shared_part(parts)), parts, out)
    assert_same(read_whole(out), extended(state))
    # Moments of other shapes are left out.
    state["last_optimizer_state"]["state"][1]["exp_avg"] = torch.zeros(3)
    for entry in state["last_optimizer_state"]["state"].values():
        entry["exp_avg_sq_row"] = torch.zeros(2)  # as Adafactor's
    assert "last_optimizer_state" not in extended(state)
    state["last_optimizer_state"]["param_groups"][0]["params"].pop()
    assert "last_optimizer_state" not in extended(state)
