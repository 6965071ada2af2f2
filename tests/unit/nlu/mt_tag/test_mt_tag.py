"""The model against the paper's equations, and what it starts as."""

import copy

import pytest
import torch

from fairseq_mtmoe.slots import expert_layers
from tests.helpers.bert import in_all_places
from tests.helpers.encoders import all_numbers, dense_encoder, tag_model, task_batch
from tests.helpers.layer_reference import slow_forward
from tests.helpers.models import perturb

MODELS = {"mt_tag": False, "mt_switch": True}
models = pytest.mark.parametrize("switch", MODELS.values(), ids=MODELS)


def by_the_paper(block, hidden, branch_input, context):
    """A slot that computes equations 1 to 6 for one token after the other; nothing at padding."""
    assert block.moe.blend is None  # equation 6 is by the gate's value alone
    return slow_forward(block.moe, hidden, branch_input, context.padding_mask.t(), context.task_ids)


@models
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_are_the_papers(switch, training, monkeypatch):
    model = perturb(tag_model(switch=switch, expert_combine="paper").train(training))
    slow = copy.deepcopy(model)
    found = all_numbers(model(**task_batch()))
    in_all_places(monkeypatch)
    for block in slow.encoder.layers:
        block.slot = by_the_paper
    wanted = all_numbers(slow(**task_batch()))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    weights = torch.linspace(-1, 1, len(found))
    for numbers in (found, wanted):
        (numbers * weights).sum().backward()
    right = dict(slow.named_parameters())
    for name, parameter in model.named_parameters():
        gradient = right[name].grad
        scale = max(1e-2, gradient.abs().max().item())  # the keys' biases have nothing but rounding
        assert (parameter.grad - gradient).abs().max() <= 1e-4 * scale, name
        assert ".gate." not in name or gradient.any(), name


@models
def test_every_block_has_experts_that_are_copies_of_its_pretrained_layer(switch):
    dense, model = dense_encoder(), tag_model(switch=switch)
    layers = expert_layers(model)
    assert [*layers] == ["encoder.layers.0", "encoder.layers.1"]
    for path, layer in layers.items():
        for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
            copies = layer.experts.get_parameter(name.replace(".", "_"))
            assert torch.equal(copies, dense.get_parameter(f"{path}.{name}").expand(4, *copies.shape[1:]))
        assert 0 < layer.gate.weight.abs().max() < 0.006
        assert len(layer.gate.weight) == 4  # tasks, or experts
