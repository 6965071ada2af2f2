"""Whether what `bench_layer.py` times computes what it should: compared before anything is timed."""

from __future__ import annotations

import torch
from layer_systems import Bare, System
from torch import Tensor

from fairseq_mtmoe.moe import MoELayer, Routing
from fairseq_mtmoe.moe.reference import expert_output

SLICE = 32  # tokens


@torch.no_grad()
def check_in_place(system: System) -> None:
    """At full size, some tokens' outputs are those of the experts that the gate chose for them."""
    layer = system.module
    assert isinstance(layer, MoELayer) and layer.blend is not None
    seen: list[Routing] = []
    handle = layer.gate.register_forward_hook(lambda module, args, routing: seen.append(routing))
    output_TH = system.call(system.input_TH)
    handle.remove()
    routing = seen[0]
    for token in torch.linspace(0, len(output_TH) - 1, SLICE).long().tolist():
        scale = 1 + layer.blend.float() * (routing.gate_T[token] / routing.uniform_gate - 1)
        expected_H = scale * expert_output(layer, int(routing.expert_T[token]), system.input_TH[token])
        assert_near(output_TH[token], expected_H)


@torch.no_grad()
def check_bound(system: System, num_experts: int) -> None:
    """The bare products give each group of tokens what its own weights say."""
    bare, x_TH = system.module, system.input_TH
    assert isinstance(bare, Bare)
    output_TH = bare(x_TH)
    for token in torch.linspace(0, len(x_TH) - 1, SLICE).long().tolist():
        expert = token // (len(x_TH) // num_experts)
        fc1, fc2 = bare.fc1_weight[expert], bare.fc2_weight[expert]
        if bare.transposed:
            fc1, fc2 = fc1.t(), fc2.t()
        assert_near(output_TH[token], (x_TH[token] @ fc1).relu() @ fc2)


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Equal but for rounding, which bfloat16 does at every hundredth part."""
    tolerance = 1e-4 if found.dtype == torch.float32 else 5e-2
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)
