"""What a model is said to cost a token, against torch's own count of a forward pass."""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fairseq_mtmoe.moe import AdapterBank, TargetAdapter
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.slots import expert_layers
from fairseq_mtmoe.slots.sparse_model import model_size
from tests.helpers.models import SIZES, dense_model, moe_model
from tests.helpers.pemt import target_model
from tests.helpers.t5 import CONFIGS, tiny_t5

H, INNER, N = SIZES["encoder_embed_dim"], SIZES["encoder_ffn_embed_dim"], 4
MATRIX_PRODUCTS = (torch.ops.aten.mm, torch.ops.aten.addmm)
EXPERT = 2 * H * INNER


@pytest.mark.parametrize("make", [dense_model, *(partial(tiny_t5, config) for config in CONFIGS.values())])
def test_a_dense_model_costs_a_token_what_torch_counts(make):
    """Of one source and one target token; `bmm` and the like are attention's, of tokens with each other."""
    model, token = make(), torch.tensor([[5]])
    with FlopCounterMode(display=False) as counter:
        model(token, torch.tensor([1]), token)
    counted = counter.get_flop_counts()["Global"]
    of_matrices = sum(flops for operator, flops in counted.items() if operator in MATRIX_PRODUCTS)
    assert model_size(model)["multiplications"] == of_matrices // 2
    assert model_size(model)["parameters"] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("gates", ["base", "task"])
def test_a_token_pays_for_one_expert_and_one_gate(gates):
    """Two of the four blocks have experts."""
    sparse, dense = (model_size(model) for model in (moe_model(expert_gates=gates), dense_model()))
    assert sparse["multiplications"] - dense["multiplications"] == 2 * N * H
    assert sparse["parameters"] > dense["parameters"] + 2 * (N - 1) * EXPERT


@pytest.mark.parametrize("kind", ["lora", "bottleneck"])
def test_adapters_of_all_sources_cost_a_token_their_matrices(kind):
    model = target_model(adapter=kind)
    banks = [module for module in model.modules() if isinstance(module, AdapterBank)]
    others = [module for module in model.modules() if isinstance(module, TargetAdapter)]
    of_banks = sum(bank.down.numel() + bank.up.numel() for bank in banks)
    of_targets = sum(each.down.weight.numel() + each.up.weight.numel() for each in others)
    plain = model_size(tiny_t5())["multiplications"]
    assert banks and others and model_size(model)["multiplications"] == plain + of_banks + of_targets


def test_parameters_are_those_of_all_ranks():
    whole, part = moe_model(), moe_model()
    for layer in expert_layers(part).values():
        layer.experts.placement = ExpertPlacement(N, 1, 2, group=object())
        for name, parameter in list(layer.experts.named_parameters()):
            setattr(layer.experts, name, torch.nn.Parameter(parameter[1:3].detach().clone()))
    assert model_size(part) == model_size(whole)


def test_conditional_parts_cost_a_token_what_is_applied_to_it():
    """FiLM is worked out once for a task; the bottleneck's two matrices are every token's."""
    plain, norms, bottleneck = (
        model_size(dense_model(**options))["multiplications"]
        for options in ({}, *({"conditional": part, "task_names": "aa,bb,cc"} for part in ("norm", "bottleneck")))
    )
    assert norms == plain < bottleneck and (bottleneck - plain) % (2 * H * (H // 3)) == 0
