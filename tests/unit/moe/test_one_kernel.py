"""Operations in one kernel: interpreted on a CPU they give what they give in torch; a wrong one is not used.

Triton comes with torch's builds for CUDA; elsewhere `pip install triton` lets all of these run.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import fairseq_mtmoe
from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate, one_kernel
from fairseq_mtmoe.moe.assignment import triton_form
from fairseq_mtmoe.moe.assignment.gpu_form import gpu_assignment
from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind_everywhere
from fairseq_mtmoe.moe.dispatch import combined, combined_backward, sorted_by_expert
from fairseq_mtmoe.moe.grouped_matmul.operators import relu_gradient_
from fairseq_mtmoe.moe.one_kernel import FORMS, kernels_are_right
from fairseq_mtmoe.moe.softmax_choice import balance, chosen, chosen_backward, softmax_choice, tasks_in_range

interpreted = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
CPU = torch.device("cpu")


@pytest.fixture
def as_on_a_gpu():
    with device_kind_everywhere(DeviceKind.GPU):
        yield


def both(function, *arguments):
    """What the kernel gives, and what the form in torch gives: as tuples."""
    forms = FORMS[function.__name__]
    return [
        value if isinstance(value, tuple) else (value,)
        for value in (forms.kernel(*arguments), forms.in_torch(*arguments))
    ]


def assert_same(function, *arguments, **tolerance):
    for found, right in zip(*both(function, *arguments), strict=True):
        torch.testing.assert_close(found, right, **tolerance)


@interpreted
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("tokens", "experts"), [(1, 1), (64, 3), (200, 70), (0, 4)])
def test_tokens_are_sorted_as_by_a_stable_sort(tokens, experts):
    """The number after the last is padding's."""
    expert_T = torch.randint(experts + 1, (tokens,), generator=torch.Generator().manual_seed(1))
    assert_same(sorted_by_expert, expert_T, experts, rtol=0, atol=0)


def rows_and_scales(dtype, width):
    generator = torch.Generator().manual_seed(1)
    grad, rows = (torch.randn(9, width, generator=generator).to(dtype) for _ in range(2))
    gate_T = torch.rand(9, generator=generator)
    return grad, rows, torch.randperm(9, generator=generator), gate_T, torch.tensor(0.3).to(dtype), 0.25


@interpreted
@pytest.mark.parametrize("width", [1, 40, 1100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("with_blend", [True, False])
def test_rows_are_combined_with_their_scale_in_one_pass(dtype, width, with_blend):
    grad, rows, row_T, gate_T, blend, uniform = rows_and_scales(dtype, width)
    rest = (row_T, gate_T, blend if with_blend else None, uniform)
    close = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-4}
    assert_same(combined, rows, *rest, **close)
    found, right = both(combined_backward, grad, rows, *rest)
    for one, other in zip(found[: 2 + with_blend], right, strict=False):
        torch.testing.assert_close(one, other, **close)


def some_logits(tokens, experts):
    generator = torch.Generator().manual_seed(1)
    padding_T = torch.rand(tokens, generator=generator) < 0.3
    return torch.randn(tokens, experts, generator=generator), padding_T


@interpreted
@pytest.mark.parametrize(("tokens", "experts"), [(1, 1), (150, 5), (64, 33)])
@pytest.mark.parametrize("padded", [False, True])
def test_choices_and_their_gradients_are_those_of_a_softmax(tokens, experts, padded):
    logits_TN, padding_T = some_logits(tokens, experts)
    padding_T = padding_T if padded else None
    assert_same(chosen, logits_TN, padding_T, False)
    assert_same(chosen, logits_TN, padding_T, True)
    share_TN, gate_T, expert_T, parts = chosen.in_torch(logits_TN, padding_T, True)
    assert_same(balance, parts)
    pull_N, grad_loss = balance.in_torch(parts)[1], torch.tensor(0.7)
    for gradients in ((gate_T.sin(), None, None), (None, grad_loss, pull_N), (gate_T.sin(), grad_loss, pull_N)):
        assert_same(chosen_backward, share_TN, expert_T, *gradients)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("balances", [False, True])
def test_the_choice_has_the_gradients_that_torch_finds(balances, padded):
    """Those of the gates as they are written for a CPU."""
    logits_TN, padding_T = some_logits(40, 5)
    padding_T = padding_T if padded else None
    real_T = torch.ones(40) if padding_T is None else (~padding_T).float()
    weight_T = torch.linspace(-1, 1, 40) * real_T  # no output depends on a gate at padding
    one, other = (logits_TN.clone().requires_grad_() for _ in range(2))
    gate_T, expert_T, loss = softmax_choice(one, padding_T, balances)
    share_TN = other.softmax(1)
    right_T, index_T = share_TN.max(1)
    number = real_T.sum()
    load_N = torch.zeros(5).scatter_add(0, index_T, real_T) / number
    right_loss = 5 * (load_N * (real_T @ share_TN / number)).sum()
    assert torch.equal(gate_T, right_T) and torch.equal(expert_T, index_T.where(real_T > 0, 5))
    assert (loss is None) == (not balances)
    ((gate_T * weight_T).sum() + (0.3 * loss if balances else 0)).backward()
    ((right_T * weight_T).sum() + (0.3 * right_loss if balances else 0)).backward()
    torch.testing.assert_close(one.grad, other.grad)
    if balances:
        torch.testing.assert_close(loss, right_loss)


@interpreted
@pytest.mark.parametrize("wrong", [None, 7, 250])
@pytest.mark.parametrize("padded", [False, True])
def test_wrong_tasks_are_found_but_at_mere_padding(padded, wrong):
    task_B = torch.arange(300) % 4
    if wrong is not None:
        task_B[wrong] = -1 if wrong == 7 else 9
    padding_T = (torch.rand(40 * 300, generator=torch.Generator().manual_seed(1)) < 0.3) if padded else None
    if padding_T is not None:
        padding_T.view(40, 300)[:, 250] = True
    assert_same(tasks_in_range, task_B, padding_T, 4)
    assert tasks_in_range.in_torch(task_B, padding_T, 4)[1] == (wrong is None or (padded and wrong == 250))


@interpreted
def test_the_gradient_of_relu_and_its_sums():
    generator = torch.Generator().manual_seed(1)
    grad, active = (torch.randn(150, 70, generator=generator) for _ in range(2))
    offsets = torch.tensor([70, 70, 139])
    grad[139:] = 0
    (found, sums), (right, right_sums) = (
        (mine, form(mine, active.relu(), offsets))
        for form, mine in ((FORMS["relu_gradient_"].kernel, grad.clone()), (relu_gradient_.in_torch, grad.clone()))
    )
    assert torch.equal(found, right)
    torch.testing.assert_close(sums, right_sums, rtol=1e-5, atol=1e-5)


@pytest.fixture
def trial():
    """The trial of this process, forgotten before and after."""
    one_kernel.trial.cache_clear()
    yield lambda: kernels_are_right(CPU)
    one_kernel.trial.cache_clear()


@interpreted
@pytest.mark.usefixtures("as_on_a_gpu")
def test_all_kernels_pass_their_trial(trial):
    assert trial()


@pytest.mark.parametrize("name", ["sorted_by_expert", "combined"])
@pytest.mark.parametrize("wrong", [lambda right, *args: right(*args) + 0.1, lambda right, *args: 1 / 0])
def test_a_kernel_that_fails_its_trial_is_not_used(name, wrong, trial, monkeypatch):
    class InTorch(one_kernel.Forms):
        def kernel(self, *args):
            return self.in_torch(*args)

    class Wrong(one_kernel.Forms):
        def kernel(self, *args):
            first, *others = one_kernel._as_tuple(self.in_torch(*args))
            return (wrong(lambda: first.float()).to(first.dtype) + (first.dtype == torch.long), *others)

    right = {name: InTorch(forms.in_torch, forms.by_triton, forms.example) for name, forms in FORMS.items()}
    monkeypatch.setattr(one_kernel, "FORMS", right)
    assert trial()
    one_kernel.trial.cache_clear()
    forms = FORMS[name]
    monkeypatch.setattr(one_kernel, "FORMS", {**right, name: Wrong(forms.in_torch, forms.by_triton, forms.example)})
    assert not trial()


@pytest.fixture
def with_kernels_in_torch(monkeypatch):
    """Kernels are chosen as on a GPU with Triton; in their place stands what they are compared with."""
    monkeypatch.setattr(one_kernel, "has_triton", lambda tensor: True)
    monkeypatch.setattr(one_kernel, "kernels_are_right", lambda device: True)
    monkeypatch.setattr(triton_form, "triton_assignment", gpu_assignment)
    monkeypatch.setattr(one_kernel.Forms, "kernel", lambda forms, *args: forms.in_torch(*args))


@pytest.mark.usefixtures("with_kernels_in_torch")
@pytest.mark.parametrize("gate", ["base", "task", "switch", "fixed"])
@pytest.mark.parametrize("combine", ["preserving", "paper"])
def test_a_layer_of_kernels_has_the_outputs_and_gradients_of_the_layer_without(gate, combine, monkeypatch):
    torch.manual_seed(0)
    layer = MoELayer(build_gate(gate, 4, 8, 3), ExpertBank(4, 8, 16), combine)
    with torch.no_grad():
        if layer.blend is not None:
            layer.blend.fill_(0.3)
    padding, tasks = torch.arange(30).view(10, 3) % 7 == 6, torch.arange(3)

    def run():
        layer.zero_grad()
        hidden, branch = (torch.linspace(-1, 1, 240).sin().mul(by).view(10, 3, 8).requires_grad_() for by in (1, 2))
        output = layer(hidden, branch, padding, tasks)
        loss = output.square().sum()
        if layer.last_balance_loss is not None:
            loss = loss + 0.7 * layer.last_balance_loss
        loss.backward()
        grads = [hidden.grad, branch.grad, *(parameter.grad.clone() for parameter in layer.parameters())]
        return [output.detach(), loss.detach(), *(grad for grad in grads if grad is not None)]

    with device_kind_everywhere(DeviceKind.GPU):
        found = run()
        monkeypatch.setattr(one_kernel, "has_triton", lambda tensor: False)
        right = run()
    torch.testing.assert_close(found, right, rtol=1e-5, atol=1e-6)


def test_the_mark_for_the_compiler_is_torchs_and_does_not_import_it():
    def function():
        pass

    assert torch.compiler.assume_constant_result(function).__dict__ == kernels_are_right.__dict__
    code = "import sys, fairseq_mtmoe.moe; print('torch._dynamo' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(fairseq_mtmoe.__file__).parents[1])}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout == "False\n"
