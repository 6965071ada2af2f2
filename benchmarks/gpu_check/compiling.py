"""Part `compile`: `torch.compile` takes every layer, and an encoder, as one graph, and what it makes of it is right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import torch

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from gpu_check.device import short
from gpu_check.encoder import DENSE, SMALL, apart, batch_of, encoder_of, moved
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
    for kind in (DENSE,) if setting.toy else (DENSE, "task"):
        name = f"BERT's encoder, {kind}, {short(dtype)}"
        yield Check(name, partial(encoder_compiles, setting, name, kind, dtype))


def compiles(setting: Setting, name: str, kind: str, training: bool, dtype: torch.dtype) -> list[Row]:
    """Without a graph break, forward and backward."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    hidden = 16 if setting.toy else 128
    layer = MoELayer(build_gate(kind, N, hidden, TASKS), ExpertBank(N, hidden, 2 * hidden), "paper")
    layer = layer.to(setting.device, dtype).train(training)
    compiled = torch.compile(layer, backend=backend_of(setting), fullgraph=True)
    worst = 0.0
    for length in LENGTHS:
        numbers = torch.arange(6 * length).view(length, 6)
        x = torch.randn(length, 6, hidden).to(setting.device, dtype)
        inputs = [x, 2 * x, (numbers % 7 == 6).to(setting.device), (numbers % TASKS).to(setting.device)]
        found, right = results(compiled, layer, inputs), results(layer, layer, inputs)
        for key, value in right.items():
            worst = max(worst, difference(f"{key} of {length} × 6 tokens", found[key], value.cpu(), dtype))
    return [in_one_graph(setting, name, worst)]


def encoder_compiles(setting: Setting, name: str, kind: str, dtype: torch.dtype) -> list[Row]:
    """The same of an encoder, for sentences of any length."""
    torch._dynamo.reset()
    config = replace(SMALL, num_hidden_layers=1, has_pooler=False)
    encoder = encoder_of(kind, config).to(setting.device, dtype)
    compiled = torch.compile(encoder, backend=backend_of(setting), fullgraph=True)
    worst = 0.0
    for lengths in ([9, 4, 12], [6, 2]):
        inputs, found = moved(setting, batch_of(config, torch.tensor(lengths))), []
        for forward in (encoder, compiled):
            encoder.zero_grad(set_to_none=True)
            hidden = forward(**inputs).hidden
            hidden.float().square().sum().backward()
            gradients = {key: value.grad for key, value in encoder.named_parameters() if value.grad is not None}
            found.append({"states": hidden.detach(), **gradients})
        worst = max(worst, apart(found[1], {key: value.cpu() for key, value in found[0].items()}, dtype))
    return [in_one_graph(setting, name, worst)]


def backend_of(setting: Setting) -> str:
    """What makes code of a graph; at toy sizes nothing does."""
    return "aot_eager" if setting.toy else "inductor"


def in_one_graph(setting: Setting, name: str, worst: float) -> Row:
    return passed(name, f"one graph by {backend_of(setting)}, largest difference {worst:.1e} of the largest value")
