"""The pretended GPU itself: what a GPU refuses fails, what the host waits for is counted, in backward passes too."""

import pytest
import torch

from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind
from tests.helpers.pretended_gpu import CUDA, pretended_gpu


@pytest.fixture
def rules():
    with pretended_gpu() as rules:
        yield rules


def on_gpu(*shape):
    return torch.ones(*shape, device="cuda")


def test_results_are_where_their_operands_are(rules):
    x = on_gpu(2, 3)
    for tensor in (x, x.t(), x[0], x + 1, x.new_zeros(2), torch.zeros_like(x), x.sum(), x.half(), torch.empty(2).to(x)):
        assert tensor.device == CUDA and tensor.is_cuda
    for tensor in (torch.ones(2), x.cpu(), x.to("cpu", torch.half), torch.arange(3, device="cpu")):
        assert tensor.device.type == "cpu" and not tensor.is_cuda
    module = torch.nn.Linear(3, 2).cuda()
    module(x).sum().backward()
    assert module.weight.grad.is_cuda


MIXED = [
    lambda x: x + torch.ones(2),
    lambda x: torch.stack([x.sum(), torch.ones(())]),
    lambda x: torch.ones(2)[x.long()],
    lambda x: x.numpy(),
]
FREE = [
    lambda x: x * torch.ones(()),  # a single number of the host may join
    lambda x: x.masked_fill_(x > 0, 2),
    lambda x: x.repeat_interleave(x.long(), output_size=2),
    lambda x: torch.ones(2).pin_memory().to("cuda", non_blocking=True),
]
WAITING = [
    lambda x: x.sum().item(),
    lambda x: x.tolist(),
    lambda x: x[x > 0],
    lambda x: x.repeat_interleave(x.long()),
    lambda x: torch.tensor(1.0, device=x.device),
    lambda x: x.copy_(torch.ones(2)),
]


@pytest.mark.parametrize("operation", MIXED)
def test_devices_do_not_mix(rules, operation):
    with pytest.raises((RuntimeError, TypeError), match=r"device|on cpu"):
        operation(on_gpu(2))


@pytest.mark.parametrize(("waits", "operation"), [(0, one) for one in FREE] + [(1, one) for one in WAITING])
def test_waits_are_counted(rules, operation, waits):
    operation(on_gpu(2))
    assert len(rules.waits) == waits


def test_waits_in_backward_passes_are_counted(rules):
    x = on_gpu(2).requires_grad_()
    doubled = x * 2
    doubled.register_hook(lambda grad: grad * int(grad.sum() > 0) * len(grad.tolist()))
    total = doubled.sum()
    assert not rules.waits
    total.backward()
    assert len(rules.waits) == 2 and x.grad.is_cuda


@pytest.mark.parametrize(("capability", "kind"), [((8, 9), DeviceKind.GPU), ((9, 0), DeviceKind.GPU_WITH_GROUPED_MM)])
def test_the_form_follows_the_device(capability, kind):
    with pretended_gpu(capability):
        assert device_kind(on_gpu(1)) is kind
        assert device_kind(torch.ones(1)) is DeviceKind.CPU
    assert device_kind(torch.ones(1)) is DeviceKind.CPU
