"""`torch.compile` takes the whole layer as one graph, without falling back to Python in between."""

import pytest
import torch

from fairseq_mtmoe.moe import (
    ExpertBank,
    MoELayer,
    build_gate,
    remember_prices,
    running_prices,
)
from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind_everywhere

H = 16


def run(function, layer, inputs, mask, ids):
    layer.zero_grad()
    hidden = inputs.clone().requires_grad_()
    output = function(hidden, hidden * 2, mask, ids)
    output.square().sum().backward()
    recorded = []
    for prices in running_prices(layer):
        recorded.append(prices.recorded)
        prices.forget()
    return [output.detach(), hidden.grad, *(parameter.grad.clone() for parameter in layer.parameters()), *recorded]


@pytest.mark.parametrize("kind", ["base", "task", "switch"])
def test_the_form_for_a_gpu_compiles_without_a_graph_break(kind):
    """Nor does a shape in it depend on values."""
    with device_kind_everywhere(DeviceKind.GPU_WITH_GROUPED_MM):
        compare_with_compiled(kind, True, "aot_eager", False)


@pytest.mark.parametrize("kind, training, backend, with_prices", [
    ("task", True, "aot_eager", False),
    ("base", True, "aot_eager", True),
    pytest.param("base", True, "inductor", True, marks=pytest.mark.scheduled),  # a minute of a C++ compiler
])  # fmt: skip
def test_the_layer_compiles_without_a_graph_break(kind, training, backend, with_prices):
    compare_with_compiled(kind, training, backend, with_prices)


def compare_with_compiled(kind, training, backend, with_prices):
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = MoELayer(build_gate(kind, 4, H, 3), ExpertBank(4, H, 32), "paper").train(training)
    for prices in running_prices(layer) if with_prices else ():
        prices.record(torch.tensor([0.3, -0.1, 0, -0.2]), torch.ones(()))
        remember_prices([prices])
        layer.load_state_dict(layer.state_dict())
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    for length in (7, 5):  # another length must not need another layer
        inputs, ids = torch.randn(length, 6, H), torch.randint(3, (length, 6))
        mask = torch.arange(length).unsqueeze(1) >= torch.tensor([length, length - 1, length - 3] * 2)
        results = (run(function, layer, inputs, mask, ids) for function in (compiled, layer))
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
