"""What each kind of head reads and gives, and what a model of other tasks takes of a checkpoint."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from fairseq_mtmoe.moe import ExpertBank, FixedGate, MoELayer, SwitchGate, TaskGate
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.nlu.bert.heads import HeadSize, TaskHeads, transferred
from tests.helpers.refused import refused

SIZES = {"three": HeadSize(3), "value": HeadSize(1), "words": HeadSize(2, num_words=2)}
H = 5


def hidden():
    return torch.randn(6, 7, H, generator=torch.Generator().manual_seed(1)).requires_grad_()


def test_what_heads_read():
    """Classes the first state, rankings each candidate's, heads of words the means of their tokens', too."""
    assert abs(TaskHeads(400, {"a": HeadSize(50)})["a"].weight.std().item() - 0.02) < 0.001  # at first
    heads, states = TaskHeads(H, SIZES), hidden()
    rows = {"three": torch.tensor([[4], [0]]), "value": torch.tensor([[1, 2], [3, 5]]), "words": torch.tensor([[2]])}
    outputs = heads(states, rows, {"words": torch.tensor([[[1, 3], [6, 7]]])})
    of_words = torch.cat([states[2, 0], (states[2, 1] + states[2, 2]) / 2, states[2, 6]])
    features = {
        "three": states[[4, 0], 0],
        "value": states[torch.tensor([[1, 2], [3, 5]]), 0],
        "words": of_words.unsqueeze(0),
    }
    wanted = {task: F.linear(x, heads[task].weight, heads[task].bias) for task, x in features.items()}
    wanted["value"] = wanted["value"].squeeze(-1)  # a number of each candidate
    torch.testing.assert_close(outputs, wanted, rtol=1e-5, atol=1e-6)


def test_heads_without_examples_give_nothing_with_a_graph():
    heads, states = TaskHeads(H, SIZES), hidden()
    outputs = heads(states, {"three": torch.tensor([[0]])}, {"three": torch.empty(1, 0, 2, dtype=torch.long)})
    shapes = {task: tuple(numbers.shape) for task, numbers in outputs.items()}
    assert shapes == {"three": (1, 3), "value": (0, 1), "words": (0, 2)}
    torch.stack([numbers.sum() for numbers in outputs.values()]).sum().backward()
    assert all(parameter.grad is not None for parameter in heads.parameters())
    assert heads["value"].weight.grad.count_nonzero() == 0


def test_candidates_that_there_are_not_are_never_chosen():
    heads, states = TaskHeads(H, SIZES), hidden()
    for dtype in (torch.float16, torch.float32):
        numbers = heads.to(dtype)(states.to(dtype), {"value": torch.tensor([[1, 2], [3, -1]])}, {})["value"]
        assert numbers.isfinite().all() and numbers[1].softmax(0).tolist() == [1, 0] and numbers[0].min() > -1e3
    heads(states, {"value": torch.tensor([[-1, 2]])}, {})["value"].sum().backward()
    assert states.grad[0].count_nonzero() == 0


# ---- tasks of a checkpoint ----


class Model(nn.Module):
    def __init__(self, tasks, gate=TaskGate):
        super().__init__()
        self.gate = gate(2, 3, len(tasks))
        self.shared = nn.Linear(3, 3)
        self.heads = TaskHeads(3, {task: HeadSize(2) for task in tasks})


def loaded(saved, model, reuse=None):
    """The state of a model of other tasks after a checkpoint of `saved`, and the model's own before."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict(transferred(model, saved.state_dict(), reuse))
    return model.state_dict(), before


def test_known_tasks_keep_their_own_and_new_ones_stay_as_they_are():
    saved, model = Model(["a", "b", "c"]), Model(["new", "b"])
    assert torch.equal(loaded(saved, Model(["a", "b", "c"]), "b")[0]["gate.weight"], saved.gate.weight)  # no new ones
    state, before = loaded(saved, model)
    assert torch.equal(state["heads.b.weight"], saved.heads["b"].weight)
    assert torch.equal(state["heads.new.weight"], before["heads.new.weight"])
    assert torch.equal(state["gate.weight"][1], saved.gate.weight[1])
    assert torch.equal(state["gate.weight"][0], before["gate.weight"][0])
    assert torch.equal(state["shared.weight"], saved.shared.weight)


def test_a_reused_gate_is_an_exact_copy_and_several_are_their_mean():
    saved, model = Model(["a", "b", "c"]), Model(["new", "a"])
    state, _ = loaded(saved, model, "b")
    assert all(torch.equal(gate, saved.gate.weight[1]) for gate in state["gate.weight"])
    state, _ = loaded(saved, model, "a,c")
    mean = (saved.gate.weight[0] + saved.gate.weight[2]) / 2
    assert torch.allclose(state["gate.weight"][0], mean) and torch.allclose(state["gate.weight"][1], mean)


def test_gates_of_all_tasks_are_the_checkpoints(caplog):
    saved, model = Model(["a", "b"], SwitchGate), Model(["new"], SwitchGate)
    state, _ = loaded(saved, model, "b")
    assert torch.equal(state["gate.weight"], saved.gate.weight)
    assert "--reuse-gate changes nothing" in caplog.text


def fixed_model(*tasks, experts=4):
    model = Model(tasks)
    del model.gate
    model.moe = MoELayer(FixedGate(experts, 3, len(tasks)), ExpertBank(experts, 3, 5))
    return model


def test_experts_of_fixed_gates_go_with_their_tasks():
    saved, model = fixed_model("a", "b", "c"), fixed_model("c", "new", "a")
    state, before = loaded(saved, model)
    for name in ("fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias"):
        experts, own = (of[f"moe.experts.{name}"] for of in (state, before))
        known = getattr(saved.moe.experts, name)
        assert torch.equal(experts, torch.stack([known[2], own[1], known[0], own[3]]))
    state, _ = loaded(saved, fixed_model("new", "other", experts=2), "b")
    assert all(torch.equal(expert, saved.moe.experts.fc1_weight[1]) for expert in state["moe.experts.fc1_weight"])


def test_experts_in_several_processes_do_not_move_to_other_tasks():
    model = fixed_model("new")
    other_ranks: Any = object()
    model.moe.experts.placement = ExpertPlacement(8, 4, 4, group=other_ranks)
    with refused("--expert-gates"):
        transferred(model, fixed_model("a").state_dict())
