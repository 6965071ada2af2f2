"""Fixed gates: a token's expert is its task."""

from functools import partial

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.reference import slow_forward
from tests.helpers.refused import refused

pytestmark = pytest.mark.usefixtures("every_device_kind")
N, H, INNER, K = 4, 8, 16, 3


def make_layer(combine="preserving"):
    torch.manual_seed(0)
    return MoELayer(build_gate("fixed", N, H, K), ExpertBank(N, H, INNER, activation=F.gelu), combine)


def make_inputs():
    """Sentences of every task, the last of them nothing but padding, whose task is unknown."""
    torch.manual_seed(1)
    hidden, branch_input = torch.randn(2, 7, 5, H, requires_grad=True)
    padding_mask = torch.arange(7).unsqueeze(1) >= torch.tensor([7, 5, 6, 1, 0])
    return hidden, branch_input, padding_mask, torch.tensor([2, 0, 1, 2, -1])


@pytest.mark.parametrize("combine", ["preserving", "paper"])
def test_each_sentence_has_its_tasks_network_and_nothing_scales_it(combine):
    layer = make_layer(combine)
    hidden, branch_input, padding_mask, task_ids = make_inputs()
    output, bank = layer(hidden, branch_input, padding_mask, task_ids), layer.experts
    for sentence, task in enumerate([2, 0, 1, 2]):
        inner = F.gelu(F.linear(branch_input[:, sentence], bank.fc1_weight[task], bank.fc1_bias[task]))
        wanted = F.linear(inner, bank.fc2_weight[task], bank.fc2_bias[task])
        wanted = wanted.masked_fill(padding_mask[:, sentence, None], 0)
        torch.testing.assert_close(output[:, sentence], wanted, atol=1e-6, rtol=1e-5)
    assert not output[:, 4].any()
    assert [name for name, _ in layer.named_parameters()] == [f"experts.{name}" for name, _ in bank.named_parameters()]
    output.sum().backward()
    assert [bool(grad.any()) for grad in bank.fc1_weight.grad] == [True, True, True, False]


def test_output_and_gradients_are_the_references():
    layer, inputs = make_layer(), make_inputs()
    results = []
    for forward in (layer, partial(slow_forward, layer)):
        output = forward(*inputs)
        (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
        results.append([output, *(leaf.grad.clone() for leaf in layer.parameters())])
        layer.zero_grad()
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_there_must_be_an_expert_for_each_task():
    for experts, tasks in ((2, 3), (4, 0)):
        with refused("num_experts"):
            build_gate("fixed", experts, H, tasks)
    assert build_gate("fixed", 3, H, 3).num_tasks == 3
