"""`torch.compile` takes the whole layer as one graph, without falling back to Python in between."""

import pytest
import torch

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate

H = 16


def run(function, layer, inputs, mask, ids):
    layer.zero_grad()
    hidden = inputs.clone().requires_grad_()
    output = function(hidden, hidden * 2, mask, ids)
    output.square().sum().backward()
    return [output.detach(), hidden.grad, *(parameter.grad.clone() for parameter in layer.parameters())]


CASES = [(kind, training, "aot_eager") for kind in ("base", "task", "switch") for training in (True, False)]


@pytest.mark.parametrize("kind, training, backend", [*CASES, ("base", True, "inductor")])
def test_the_layer_compiles_without_a_graph_break(kind, training, backend):
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = MoELayer(build_gate(kind, 4, H, 3), ExpertBank(4, H, 32), "paper").train(training)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for length in (7, 5):  # another length must not need another layer
        inputs, ids = torch.randn(length, 6, H), torch.randint(3, (length, 6))
        mask = torch.arange(length).unsqueeze(1) >= torch.tensor([length, length - 1, length - 3] * 2)
        results = run(compiled, layer, inputs, mask, ids), run(layer, layer, inputs, mask, ids)
        for value, expected in zip(*results, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)
