import pytest
import torch
from torch import nn

from fairseq_mtmoe.backbones.bert.heads import HeadSize, TaskHeads, transferred
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe.gates import SwitchGate, TaskGate


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


def test_the_same_tasks_are_loaded_as_they_are():
    state = Model(["a", "b"]).state_dict()
    assert transferred(Model(["a", "b"]), state, "b") is state


def test_known_tasks_keep_their_own_and_new_ones_stay_as_they_are():
    saved, model = Model(["a", "b", "c"]), Model(["new", "b"])
    state, before = loaded(saved, model)
    assert torch.equal(state["heads.b.weight"], saved.heads["b"].weight)
    assert torch.equal(state["heads.new.weight"], before["heads.new.weight"])
    assert torch.equal(state["gate.weight"][1], saved.gate.weight[1])
    assert torch.equal(state["gate.weight"][0], before["gate.weight"][0])
    assert torch.equal(state["shared.weight"], saved.shared.weight)


def test_a_reused_gate_is_an_exact_copy():
    saved, model = Model(["a", "b"]), Model(["new"])
    state, _ = loaded(saved, model, "b")
    assert torch.equal(state["gate.weight"], saved.gate.weight[1:])
    assert state["gate.weight"].data_ptr() != saved.gate.weight[1:].data_ptr()


def test_several_reused_gates_are_their_mean():
    saved, model = Model(["a", "b", "c"]), Model(["new", "a"])
    state, _ = loaded(saved, model, "a,c")
    mean = (saved.gate.weight[0] + saved.gate.weight[2]) / 2
    assert torch.allclose(state["gate.weight"][0], mean) and torch.allclose(state["gate.weight"][1], mean)


def test_gates_of_all_tasks_are_the_checkpoints():
    saved, model = Model(["a", "b"], SwitchGate), Model(["new"], SwitchGate)
    state, _ = loaded(saved, model, "b")
    assert torch.equal(state["gate.weight"], saved.gate.weight)


def test_an_unknown_gate_is_named():
    with pytest.raises(UserError, match=r"`--reuse-gate` must be among the checkpoint's tasks a, b, but is 'x'"):
        transferred(Model(["new"]), Model(["a", "b"]).state_dict(), "x")
