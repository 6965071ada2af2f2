"""The model against the paper's equations, and what it starts as."""

import copy

import pytest
import torch
from torch.nn import functional as F

from fairseq_mtmoe.slots import expert_layers
from tests.helpers.bert import in_all_places
from tests.helpers.encoders import MTTaGConfig, MTTaGModel, all_numbers, dense_encoder, tag_model, task_batch
from tests.helpers.models import perturb
from tests.helpers.refused import refused

MODELS = {"mt_tag": False, "mt_switch": True}
models = pytest.mark.parametrize("switch", MODELS.values(), ids=MODELS)


def by_the_paper(block, hidden, branch_input, context):
    """A slot that computes equations 1 to 6 for one token after the other; nothing at padding."""
    experts, gate = block.moe.experts, block.moe.gate
    outputs = torch.zeros_like(branch_input).unbind(0)
    outputs = [list(sentences.unbind(0)) for sentences in outputs]
    for place, sentences in enumerate(outputs):
        for sentence in range(len(sentences)):
            if context.padding_mask[sentence, place]:
                continue
            x = hidden[place, sentence]
            weight = gate.weight if gate.weight.dim() == 2 else gate.weight[context.task_ids[sentence]]
            powers = [torch.exp((x * weight[expert]).sum()) for expert in range(len(weight))]  # equations 3 and 4
            values = [power / sum(powers) for power in powers]
            best = max(range(len(values)), key=lambda expert: values[expert])  # equation 5
            inner = F.gelu(experts.fc1_weight[best] @ x + experts.fc1_bias[best])  # equation 1
            output = experts.fc2_weight[best] @ inner + experts.fc2_bias[best]
            sentences[sentence] = values[best] * output  # equation 6
    return torch.stack([torch.stack(sentences) for sentences in outputs])


@models
@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_are_the_papers(switch, training, monkeypatch):
    model = tag_model(switch=switch, expert_combine="paper").train(training)
    perturb(model)
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
        block = dense.get_submodule(path)
        for name in ("fc1", "fc2"):
            for part in ("weight", "bias"):
                copies = getattr(layer.experts, f"{name}_{part}")
                assert len(copies) == 4
                assert all(torch.equal(expert, getattr(getattr(block, name), part)) for expert in copies)
        assert 0 < layer.gate.weight.abs().max() < 0.006
        assert len(layer.gate.weight) == 4  # tasks, or experts


@models
def test_a_shared_expert_divides_the_pretrained_layer_and_new_units_change_it(switch):
    dense = all_numbers(dense_encoder()(**task_batch()))
    divided = tag_model(switch=switch, shared_expert_dim=5)
    torch.testing.assert_close(all_numbers(divided(**task_batch())), dense, rtol=1e-5, atol=1e-6)
    renewed = tag_model(switch=switch, shared_expert_dim=5, expert_reinit_ratio=0.5)
    assert (all_numbers(renewed(**task_batch())) - dense).abs().max() > 1e-4
    for path, layer in expert_layers(renewed).items():
        assert torch.equal(layer.shared.fc1_weight, expert_layers(divided)[path].shared.fc1_weight)
        assert torch.equal(layer.gate.weight, expert_layers(divided)[path].gate.weight)


def test_without_tasks_that_give_an_encoder_there_is_no_model():
    with refused("--task", "--task glue"):
        MTTaGModel.build_model(MTTaGConfig(), None)
