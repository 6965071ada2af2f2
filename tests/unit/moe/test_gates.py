"""The three gates: whom they choose, how strongly, what they learn from."""

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe import BaseGate, SwitchGate, TaskGate, balanced_assignment, build_gate
from tests.helpers.pairwise import pairwise
from tests.helpers.refused import refused

pytestmark = pytest.mark.usefixtures("every_device_kind")
N, H, K = 4, 8, 3
KINDS, FORMS = ["base", "task", "switch"], ["CPU", "GPU", "GPU_WITH_GROUPED_MM"]


def hidden(tokens=20, seed=0):
    return torch.randn(tokens, H, generator=torch.Generator().manual_seed(seed))


def test_base_is_balanced_in_training_and_greedy_in_evaluation():
    torch.manual_seed(0)
    gate, x = BaseGate(N, H), hidden() + 3
    assert torch.allclose(gate.weight @ gate.weight.t(), 0.01 * torch.eye(N), atol=1e-6)
    scores = x @ gate.weight.detach().t()
    with torch.no_grad():  # the mode follows `training`, not whether gradients flow
        assert torch.equal(gate(x).expert_T, balanced_assignment(scores))
    greedy = gate.eval()(x.requires_grad_()).expert_T
    assert torch.equal(greedy, scores.argmax(1))
    assert torch.bincount(greedy, minlength=N).max() > 5


def test_bases_gate_is_the_sigmoid_of_the_chosen_score():
    torch.manual_seed(0)
    gate, x = BaseGate(N, H), hidden().requires_grad_()
    routing = gate(x)
    chosen = gate.weight[routing.expert_T]
    assert torch.allclose(routing.gate_T, torch.sigmoid((x * chosen).sum(1)))
    assert routing.uniform_gate == 0.5
    assert routing.balance_loss is None
    routing.gate_T.sum().backward()
    slope = (routing.gate_T * (1 - routing.gate_T)).detach()
    assert torch.allclose(x.grad, slope.unsqueeze(1) * chosen.detach(), atol=1e-6)


@pytest.mark.parametrize("experts", [1, N])
@pytest.mark.parametrize("training", [True, False])
def test_padding_has_no_expert_and_leaves_the_others_as_they_are(experts, training):
    torch.manual_seed(0)
    padding, tasks = torch.arange(20) % 3 == 1, torch.arange(20) % K
    for kind in ("base", "task", "switch"):
        gate, x = build_gate(kind, experts, H, K).train(training), hidden().requires_grad_()
        routing, alone = gate(x, tasks, padding), gate(x[~padding], tasks[~padding])
        assert (routing.expert_T[padding] == experts).all()
        assert torch.equal(routing.expert_T[~padding], alone.expert_T)
        torch.testing.assert_close(routing.gate_T[~padding], alone.gate_T)
        routing.gate_T.sum().backward()


def test_task_gates_are_mt_tags_equations():
    torch.manual_seed(0)
    gate, x = TaskGate(N, H, K), hidden()
    with torch.no_grad():
        gate.weight.normal_()
    tasks = torch.arange(20) % K
    routing = gate(x, tasks)
    for token in range(20):
        logits = x[token] @ gate.weight[tasks[token]].t()  # eq. 3
        share = F.softmax(logits, 0)  # eq. 4
        assert routing.expert_T[token] == share.argmax()  # eq. 5
        assert routing.gate_T[token].item() == pytest.approx(share.max().item(), abs=1e-6)  # eq. 6
    assert routing.uniform_gate == 1 / N


def test_many_task_gates_are_computed_by_task_as_few_are_together(monkeypatch):
    torch.manual_seed(1)
    gate, hidden_TH, tasks_T = build_gate("task", N, H, 3), torch.randn(20, H), torch.arange(20) % 3
    results = []
    for limit in (64, 0):
        monkeypatch.setattr("fairseq_mtmoe.moe.gates.DENSE_LIMIT", limit)
        leaf_TH = hidden_TH.clone().requires_grad_()
        routing = gate(leaf_TH, tasks_T)
        (routing.gate_T * torch.linspace(-1, 1, 20)).sum().backward()
        results.append([routing.expert_T, routing.gate_T.detach(), leaf_TH.grad, gate.weight.grad])
        gate.weight.grad = None
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("tasks", [[1] * 20, [0] * 15 + [2] * 5])
def test_absent_tasks_get_no_gradient_and_the_others_do(tasks):
    gate, x = TaskGate(N, H, K), hidden()
    gate(x, torch.tensor(tasks)).gate_T.sum().backward()
    for task in range(K):
        assert bool(gate.weight.grad[task].any()) == (task in tasks)


def test_softmax_gates_start_undecided():
    torch.manual_seed(0)
    for gate in (TaskGate(N, 500, K), SwitchGate(N, 500)):
        assert gate.weight.std().item() == pytest.approx(0.001, rel=0.1)
        routing = gate(torch.randn(50, 500), torch.zeros(50, dtype=torch.long))
        assert routing.gate_T.max().item() == pytest.approx(routing.uniform_gate, rel=0.2)


def test_switch_is_one_softmax_gate_with_a_balance_loss():
    torch.manual_seed(0)
    gate, x = SwitchGate(N, H), hidden()
    with torch.no_grad():
        gate.weight.normal_()
    routing = gate(x)
    share = (x @ gate.weight.t()).softmax(1)
    assert torch.equal(routing.expert_T, share.argmax(1))
    assert torch.allclose(routing.gate_T, share.amax(1))
    load = (share.argmax(1, keepdim=True) == torch.arange(N)).float().mean(0)
    expected = N * (load * share.mean(0)).sum()
    assert torch.allclose(routing.balance_loss, expected)
    routing.balance_loss.backward()
    assert gate.weight.grad.any()


def test_the_balance_loss_is_1_when_even_and_n_when_not():
    gate = SwitchGate(N, N)
    with torch.no_grad():
        gate.weight.copy_(100 * torch.eye(N))
    assert gate(torch.eye(N).repeat(5, 1)).balance_loss.item() == pytest.approx(1)
    assert gate(torch.eye(N)[[2] * 5]).balance_loss.item() == pytest.approx(N)


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
    waits = tasks is None or every_device_kind.can_sync  # nobody waits for a value on a GPU
    sentence = f"`task_ids` must be .*, but is {value} instead" if waits else "`task_ids` must be from 0 to 2"
    with pytest.raises(UserError if waits else RuntimeError, match=sentence):
        gate(hidden(2), None if tasks is None else torch.tensor(tasks))


@pytest.mark.parametrize(
    ("name", "arguments"), [("gate", ("soft", 4, 8)), ("num_experts", ("base", 0, 8)), ("num_tasks", ("task", 4, 8))]
)
def test_impossible_gates_are_refused(name, arguments):
    with refused(name):
        build_gate(*arguments)
