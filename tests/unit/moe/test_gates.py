"""The gates: whom they choose, what they learn from; the layer's tests compare all of it with the reference."""

import pytest
import torch
from torch import nn

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.moe import BaseGate, SwitchGate, TaskGate, build_gate
from tests.helpers.pairwise import pairwise

pytestmark = pytest.mark.usefixtures("every_device_kind")
N, H, K = 4, 8, 3
KINDS, FORMS = ["base", "task", "switch"], ["CPU", "GPU", "GPU_WITH_GROUPED_MM"]


def hidden(tokens=20, seed=0):
    return torch.randn(tokens, H, generator=torch.Generator().manual_seed(seed))


def test_bases_weights_begin_orthogonal_and_softmax_gates_undecided():
    torch.manual_seed(0)
    weight = BaseGate(N, H).weight
    assert torch.allclose(weight @ weight.t(), 0.01 * torch.eye(N), atol=1e-6)
    for gate in (TaskGate(N, 500, K), SwitchGate(N, 500)):
        assert gate.weight.std().item() == pytest.approx(0.001, rel=0.1)
        routing = gate(torch.randn(50, 500), torch.zeros(50, dtype=torch.long))
        assert routing.gate_T.max().item() == pytest.approx(routing.uniform_gate, rel=0.2)


@pytest.mark.parametrize("padded", [False, True])
def test_switch_has_a_balance_loss_of_the_tokens(padded):
    torch.manual_seed(0)
    gate, x = SwitchGate(N, H), hidden()
    nn.init.normal_(gate.weight)
    padding = torch.arange(20) % 3 == 1 if padded else None
    share = (x[~padding] if padded else x) @ gate.weight.t()
    share = share.softmax(1)
    load = (share.argmax(1, keepdim=True) == torch.arange(N)).float().mean(0)
    found = gate(x, None, padding).balance_loss
    assert torch.allclose(found, N * (load * share.mean(0)).sum())
    found.backward()
    assert gate.weight.grad.any()


@pairwise(kind=KINDS, dtype=[torch.bfloat16, torch.float16], every_device_kind=FORMS)
def test_half_precision_decides_in_float32(kind, dtype, device):
    torch.manual_seed(0)
    gate = build_gate(kind, N, H, K).to(dtype)
    x, tasks = hidden().to(dtype), torch.arange(20) % K
    routing = gate(x, tasks)
    assert routing.gate_T.dtype == torch.float32
    expected = gate.float()(x.float(), tasks)
    assert torch.equal(routing.expert_T, expected.expert_T)
    assert torch.equal(routing.gate_T, expected.gate_T)
    with torch.autocast(device, torch.bfloat16):
        assert torch.equal(gate(x.float(), tasks).gate_T, expected.gate_T)


@pytest.mark.parametrize(("tasks", "value"), [(None, "None"), ([0, 3], "3"), ([-1, 0], "-1")])
def test_wrong_task_ids_are_named(tasks, value, every_device_kind):
    gate = TaskGate(N, H, K)
    waits = tasks is None or every_device_kind.host_can_read  # nobody waits for a value on a GPU
    sentence = f"`task_ids` must be .*, but is {value} instead" if waits else "`task_ids` must be from 0 to 2"
    with pytest.raises(UserError if waits else RuntimeError, match=sentence):
        gate(hidden(2), None if tasks is None else torch.tensor(tasks))
