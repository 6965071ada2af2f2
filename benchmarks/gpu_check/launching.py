"""Part `launches`: the kernels of one expert layer beside the dense layer's, and the layer inside a CUDA graph.

`bench_launches.py` counts operations on a CPU. Here the profiler counts what the card ran, where one operation may be
several kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from torch import Tensor, nn

from fairseq_mtmoe.moe import BaseRouting, remember_prices, running_prices
from gpu_check.device import count_launches
from gpu_check.reference import KINDS, difference
from gpu_check.rows import Check, Row, Setting, Skipped, measured, passed
from gpu_check.waits import Batch, N, batch_of

DTYPE = torch.bfloat16
WARMUPS = 3


def checks(setting: Setting) -> Iterator[Check]:
    """By gate, in training (forward and backward) and in evaluation."""
    for kind, training in product(KINDS, (True, False)):
        name = f"{kind} gate, {'training' if training else 'evaluation'}"
        yield Check(f"{name}: launches", partial(launches_of, setting, f"{name}: launches", kind, training))
        yield Check(f"{name}: graph", partial(graph_is_right, setting, f"{name}: in a graph", kind, training))


def launches_of(setting: Setting, name: str, kind: str, training: bool) -> list[Row]:
    """Count those of the expert layer, and say how many the dense layer has."""
    batch = in_training(setting, kind, training)
    hidden = batch.x.shape[-1]
    dense = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden))
    dense = dense.to(setting.device, DTYPE).train(training)
    works: list[Callable[[], object]] = [batch.work, partial(_pass, lambda: dense(batch.x), training)]
    sparse, beside = (_launches(setting, work) for work in works)
    return [measured(name, sparse, "launches", f"the dense layer's {beside}, {sparse - beside} beyond them")]


def in_training(setting: Setting, kind: str, training: bool) -> Batch:
    """Return a batch and a layer that has remembered prices, as after the first updates."""
    settings = {"routing": BaseRouting()} if kind == "base" else {}
    batch = batch_of(setting, kind, DTYPE, training, **settings)
    for prices in running_prices(batch.layer):
        prices.record(torch.zeros(N, device=setting.device), torch.ones((), device=setting.device))
        remember_prices([prices])
    return batch


def _launches(setting: Setting, work: Callable[[], object]) -> int:
    for _ in range(1 if setting.toy else WARMUPS):
        work()
    return count_launches(setting, work)


def _pass(forward: Callable[[], Tensor], training: bool) -> Tensor:
    output = forward()
    if training:
        output.sum().backward()
    return output


def graph_is_right(setting: Setting, name: str, kind: str, training: bool) -> list[Row]:
    """Capture a pass, and replay it with other inputs: output and gradients equal those without a graph."""
    if setting.toy:
        raise Skipped("only a GPU has CUDA graphs")
    batch = in_training(setting, kind, training)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARMUPS):
            batch.work()
    torch.cuda.current_stream().wait_stream(stream)
    batch.forget_gradients()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = batch.work()
    with torch.no_grad():
        batch.x.copy_(torch.randn_like(batch.x))
    graph.replay()
    torch.cuda.synchronize()
    replayed = found(batch, output)
    batch.forget_gradients()
    right = found(batch, batch.work())
    worst = max(difference(key, replayed[key], value.cpu(), DTYPE) for key, value in right.items())
    return [passed(name, f"captured; largest difference {worst:.1e} of the largest value")]


def found(batch: Batch, output: Tensor) -> dict[str, Tensor]:
    """Copies of the output and of every gradient that there is."""
    named = [("x", batch.x), *batch.layer.named_parameters()]
    gradients = {f"gradient of {name}": value.grad.clone() for name, value in named if value.grad is not None}
    return {"output": output.detach().clone(), **gradients}
