"""Part `processes`: the experts of a layer in several processes, a GPU each, against all of them in one."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, distributed
from torch.multiprocessing import spawn

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.device_kind import device_kind, device_kind_everywhere
from fairseq_mtmoe.moe.parallel.placement import average_over_replicas, place_experts
from gpu_check.rows import Check, Row, Setting, Skipped, passed

KINDS = ("base", "task", "switch")
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # of the largest value
N, H, INNER, TASKS, TOKENS = 8, 16, 32, 3, 40
CASES = list(product(KINDS, (torch.float32, torch.bfloat16)))


def checks(setting: Setting) -> Iterator[Check]:
    for size in (2, 4):
        yield Check(f"{size} processes", partial(several_are_one, setting, size))


def several_are_one(setting: Setting, size: int) -> list[Row]:
    cards = torch.cuda.device_count() if setting.device != "cpu" else 2
    if cards < size:
        raise Skipped(f"it takes {size} GPUs")
    with TemporaryDirectory() as folder:
        spawn(in_one_of_several, (size, setting.device, folder), nprocs=size)
        states = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(size)]
    with device_kind_everywhere(device_kind(torch.empty(0, device=setting.device))):
        for number, (kind, dtype) in enumerate(CASES):
            compare(kind, dtype, [state[number] for state in states])
    return [passed(f"{size} processes: outputs and gradients are those of one, all gates")]


def compare(kind: str, dtype: torch.dtype, states: list[dict[str, Tensor]]) -> None:
    """Raise AssertionError where a process's values are not those of one process with all experts."""
    size, whole = len(states), built(kind, dtype)
    outputs = [passed_through(whole, rank, "cpu") for rank in range(size)]  # gradients add up
    for rank, state in enumerate(states):
        right = {"output": outputs[rank]}
        for name, parameter in whole.named_parameters():
            assert parameter.grad is not None
            mean = parameter.grad / size
            right[name] = mean.chunk(size)[rank] if name.startswith("experts.") else mean
        for name, value in right.items():
            apart = float((state[name].double() - value.double()).abs().max())
            scale = max(float(value.abs().max()), TOKENS**0.5 if name == "blend" else 1e-3)
            assert apart <= TOLERANCE[dtype] * scale, f"{kind}, {dtype}, rank {rank}: {name} is {apart / scale:.1e} off"


def built(kind: str, dtype: torch.dtype, placement: Any = None) -> MoELayer:
    """Return the layer in evaluation, where tokens go by themselves: the same with any number of processes."""
    torch.manual_seed(3)
    layer = MoELayer(build_gate(kind, N, H, TASKS), ExpertBank(N, H, INNER, placement=placement))
    with torch.no_grad():
        layer.gate.weight.normal_()
        assert layer.blend is not None
        layer.blend.fill_(0.7)
    return layer.to(dtype).eval()


def passed_through(layer: MoELayer, rank: int, device: str) -> Tensor:
    """Return the output of this process's batch, after its backward pass."""
    random = torch.Generator().manual_seed(100 + rank)
    count = TOKENS - 3 * rank  # unequal
    x_TH, gradient_TH = (torch.randn(count, H, generator=random) for _ in range(2))
    dtype, numbers = layer.experts.fc1_weight.dtype, torch.arange(count)
    x_TH, gradient_TH = (value.to(device, dtype) for value in (x_TH, gradient_TH))
    output_TH = layer(x_TH, x_TH, (numbers % 7 == 6).to(device), (numbers % TASKS).to(device))
    output_TH.backward(gradient_TH)
    return output_TH.detach()


def in_one_of_several(rank: int, size: int, device: str, folder: str) -> None:
    """Write what one process computes of all cases to a file."""
    if device != "cpu":
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo" if device == "cpu" else "nccl", init_method=f"file://{folder}/meeting", rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=100),
    )  # fmt: skip
    placement, states = place_experts(N), []
    for kind, dtype in CASES:
        layer = built(kind, dtype, placement).to(device)
        state = {"output": passed_through(layer, rank, device)}
        average_over_replicas([parameter.grad for parameter in layer.experts.parameters()], placement)
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None
            if not hasattr(parameter, "expert"):  # what data parallelism does
                distributed.all_reduce(parameter.grad.div_(size))
            state[name] = parameter.grad
        states.append({name: value.cpu() for name, value in state.items()})
    torch.save(states, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()
