"""Part `compile`: `torch.compile` takes every layer as one graph, and what it makes of it gives the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from gpu_check.device import short
from gpu_check.reference import KINDS, difference, results
from gpu_check.rows import Check, Row, Setting, passed

N, TASKS = 4, 3
LENGTHS = (7, 5)  # another length must not need another layer


def checks(setting: Setting) -> Iterator[Check]:
    """By gate and mode: in bfloat16 on a GPU, where products take another way than on a CPU."""
    dtype = torch.float32 if setting.device == "cpu" else torch.bfloat16
    cases = [("base", True)] if setting.toy else product(KINDS, (True, False))
    for kind, training in cases:
        name = f"{kind} gate, {'training' if training else 'evaluation'}, {short(dtype)}"
        yield Check(name, partial(compiles, setting, name, kind, training, dtype))


def compiles(setting: Setting, name: str, kind: str, training: bool, dtype: torch.dtype) -> list[Row]:
    """Without a graph break, forward and backward."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    hidden = 16 if setting.toy else 128
    layer = MoELayer(build_gate(kind, N, hidden, TASKS), ExpertBank(N, hidden, 2 * hidden), "paper")
    layer = layer.to(setting.device, dtype).train(training)
    backend = "aot_eager" if setting.toy else "inductor"
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    worst = 0.0
    for length in LENGTHS:
        numbers = torch.arange(6 * length).view(length, 6)
        x = torch.randn(length, 6, hidden).to(setting.device, dtype)
        inputs = [x, 2 * x, (numbers % 7 == 6).to(setting.device), (numbers % TASKS).to(setting.device)]
        found, right = results(compiled, layer, inputs), results(layer, layer, inputs)
        for key, value in right.items():
            worst = max(worst, difference(f"{key} of {length} × 6 tokens", found[key], value.cpu(), dtype))
    return [passed(name, f"one graph by {backend}, largest difference {worst:.1e} of the largest value")]
