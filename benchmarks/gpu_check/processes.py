"""Part `processes`: the experts of a layer in several processes, a GPU each, against all of them in one."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, distributed
from torch.multiprocessing import spawn

from fairseq_mtmoe.moe import ExpertBank, MoELayer, build_gate
from fairseq_mtmoe.moe.device_kind import device_kind, device_kind_everywhere
from fairseq_mtmoe.moe.gates import BaseGate
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement, average_over_replicas, place_experts
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenShuffle
from gpu_check.reference import KINDS, TOLERANCE
from gpu_check.rows import Check, Row, Setting, Skipped, passed, short

N, H, INNER, TASKS, TOKENS = 8, 16, 32, 3, 40
MOST_PROCESSES = 4
DTYPES = (torch.float32, torch.bfloat16)


def checks(setting: Setting) -> Iterator[Check]:
    """With two processes and, where there are so many GPUs, with four."""
    for size in (2, MOST_PROCESSES):
        yield Check(f"{size} processes", partial(several_are_one, setting, size))


def several_are_one(setting: Setting, size: int) -> list[Row]:
    cards = torch.cuda.device_count() if setting.device != "cpu" else 2
    if cards < size:
        raise Skipped(f"it takes {size} GPUs, and there {'is' if cards == 1 else 'are'} {cards}")
    with TemporaryDirectory() as folder:
        spawn(in_one_of_several, (size, setting.device, folder), nprocs=size)
        found = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(size)]
    with device_kind_everywhere(device_kind(torch.empty(0, device=setting.device))):
        for dtype in DTYPES:
            for kind in KINDS:
                compare(f"{kind} gate, {short(dtype)}", kind, dtype, [part[key_of(kind, dtype)] for part in found])
    backend = "NCCL" if setting.device != "cpu" else "gloo"
    return [
        passed(
            f"{size} processes by {backend}: outputs and gradients are those of one, all gates",
            "shuffled tokens: loads are even",
        )
    ]


def compare(what: str, kind: str, dtype: torch.dtype, found: list[dict[str, Tensor]]) -> None:
    """Raises AssertionError where one of the processes' values is not that of one process with all experts."""
    size = len(found)
    whole = built(kind, dtype)
    outputs = [passed_through(whole, rank, "cpu") for rank in range(size)]  # gradients add up
    for rank, part in enumerate(found):
        right = {"output": outputs[rank]}
        for name, parameter in whole.named_parameters():
            assert parameter.grad is not None
            mean = parameter.grad / size
            right[name] = mean.chunk(size)[rank] if name.startswith("experts.") else mean
        for name, value in right.items():
            apart = float((part[name].double() - value.double()).abs().max())
            scale = max(float(value.abs().max()), TOKENS**0.5 if name == "blend" else 1e-3)
            assert apart <= TOLERANCE[dtype] * scale, f"{what}, process {rank}: {name} differs by {apart / scale:.1e}"


def built(kind: str, dtype: torch.dtype, placement: Any = None) -> MoELayer:
    """The layer in evaluation, where tokens go by themselves: the same with any number of processes."""
    torch.manual_seed(3)
    layer = MoELayer(build_gate(kind, N, H, TASKS), ExpertBank(N, H, INNER, placement=placement))
    with torch.no_grad():
        layer.gate.weight.normal_()
        assert layer.blend is not None
        layer.blend.fill_(0.7)
    return layer.to(dtype).eval()


def passed_through(layer: MoELayer, rank: int, device: str) -> Tensor:
    """The output of this process's batch, after its backward pass."""
    random = torch.Generator().manual_seed(100 + rank)
    count = TOKENS - 3 * rank  # unequal
    x_TH, gradient_TH = (torch.randn(count, H, generator=random) for _ in range(2))
    dtype, numbers = layer.experts.fc1_weight.dtype, torch.arange(count)
    x_TH, gradient_TH = (value.to(device, dtype) for value in (x_TH, gradient_TH))
    output_TH = layer(x_TH, x_TH, (numbers % 7 == 6).to(device), (numbers % TASKS).to(device))
    output_TH.backward(gradient_TH)
    return output_TH.detach()


def in_one_of_several(rank: int, size: int, device: str, folder: str) -> None:
    """What one process does: all gates and types, its results in a file."""
    if device != "cpu":
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo" if device == "cpu" else "nccl", init_method=f"file://{folder}/meeting", rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=100),
    )  # fmt: skip
    placement = place_experts(N)
    found = {}
    for dtype in DTYPES:
        for kind in KINDS:
            layer = built(kind, dtype, placement).to(device)
            results = {"output": passed_through(layer, rank, device)}
            average_over_replicas([parameter.grad for parameter in layer.experts.parameters()], placement)
            for name, parameter in layer.named_parameters():
                assert parameter.grad is not None
                if not hasattr(parameter, "expert"):  # what data parallelism does
                    distributed.all_reduce(parameter.grad.div_(size))
                results[name] = parameter.grad
            found[key_of(kind, dtype)] = {name: value.cpu() for name, value in results.items()}
    shuffle(placement, device)
    torch.save(found, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()


def shuffle(placement: ExpertPlacement, device: str) -> None:
    """BASE in training assigns tokens that are shuffled over the processes, and records what its exchanges cost."""
    layer = built("base", torch.float32, placement).to(device).train()
    assert isinstance(layer.gate, BaseGate)
    layer.gate.shuffle, layer.comm.enabled, layer.load.enabled = TokenShuffle(placement), True, True
    output_TH = passed_through(layer, distributed.get_rank(), device)
    assert output_TH.isfinite().all() and layer.comm.seconds > 0 and layer.comm.num_bytes > 0
    load_N = layer.load.counts.sum(0).to(device)
    distributed.all_reduce(load_N)
    size = placement.group_size  # each process assigns a part of its own in equal shares
    assert int(load_N.max() - load_N.min()) <= size, f"loads of {load_N.tolist()}"


def key_of(kind: str, dtype: torch.dtype) -> str:
    return f"{kind} {short(dtype)}"
