"""The balance losses of all layers, collected."""

import torch
from torch import nn

from fairseq_mtmoe.moe import ExpertBank, MoELayer, balance_loss, build_gate


def layer(kind):
    return MoELayer(build_gate(kind, 4, 8), ExpertBank(4, 8, 16))


def test_the_sum_over_layers_trains_their_gates():
    torch.manual_seed(0)
    model = nn.ModuleList([layer("switch"), layer("base"), nn.Linear(8, 8), layer("switch")])
    x = torch.randn(10, 8)
    for part in (model[0], model[1], model[3]):
        part(x, x)
    expected = model[0].last_balance_loss + model[3].last_balance_loss
    loss = balance_loss(model)
    assert torch.allclose(loss, expected)
    loss.backward()
    assert model[0].gate.weight.grad.any() and model[3].gate.weight.grad.any()


def test_a_layer_that_was_left_out_adds_nothing():
    model, x = nn.ModuleList([layer("switch"), layer("switch")]), torch.randn(10, 8)
    model[0](x, x), model[1](x, x)
    balance_loss(model).backward()
    model[1](x, x)  # layerdrop leaves the first one out
    expected = model[1].last_balance_loss.item()
    loss = balance_loss(model)
    assert loss.item() == expected
    loss.backward()
    assert balance_loss(layer("base")).item() == balance_loss(layer("switch")).item() == 0  # which saw nothing
