"""Part `layer`: one expert layer beside the dense layer of the same active size and the bare products of its shapes.

Times are the GPU's own, of a forward and a backward pass with all gradients, in turn, after warm-up, the host ahead of
the GPU as in the midst of a model. What the host itself needs to queue a pass is beside them: where it is more, the GPU
waits for the host.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from layer_systems import BOUNDS, DENSE, Sizes, System, own_systems
from timing import Floor, Ratio, interleaved

from gpu_check.device import free, matmul_rate, peak_bytes
from gpu_check.rows import Check, Row, Setting, figure, measured

OURS = {"ours, BASE gate": "BASE gate", "ours, task gate": "task gates"}
EXPERTS = (16, 64)
FULL = Sizes(65_536, 1024, 4096)
TOY = Sizes(64, 16, 32)
BATCHES, REPETITIONS, WARMUPS = 2, 15, 3
DENSE_FLOOR, RATE_FLOOR = Floor(1.15), Floor(0.6, at_most=False)


def sizes_of(setting: Setting) -> Sizes:
    """Of the layers that are timed here, and of the one that assignment is a share of."""
    return replace(TOY if setting.toy else FULL, device=setting.device)


def checks(setting: Setting) -> Iterator[Check]:
    sizes = sizes_of(setting)
    kind = str(sizes.dtype).removeprefix("torch.")
    yield Check(f"matmul rate, {kind}", partial(rate_of, setting, sizes))
    for num_experts in (4, 8) if setting.toy else EXPERTS:
        name = f"{sizes.tokens:,} tokens, H={sizes.hidden:,}, F={sizes.inner:,}, {num_experts} experts, {kind}"
        yield Check(name, partial(compared, setting, sizes, num_experts, name))


def rate_of(setting: Setting, sizes: Sizes) -> list[Row]:
    """What the shares below are shares of."""
    return [measured("the card's rate, one large matrix product", rate(setting, sizes) / 1e12, "TFLOP/s")]


def rate(setting: Setting, sizes: Sizes) -> float:
    return matmul_rate(setting.device, sizes.dtype, **({"size": 64} if setting.toy else {}))


def compared(setting: Setting, sizes: Sizes, num_experts: int, name: str) -> list[Row]:
    """Times, shares of the rate, and memory, of one number of experts."""
    torch.manual_seed(1)
    systems = {
        key: system
        for key, system in own_systems(num_experts, sizes, sizes.inputs(BATCHES)).items()
        if key in (DENSE, *BOUNDS, *OURS)
    }
    steps = {key: system.step for key, system in systems.items()}
    prepare = {key: system.prepare for key, system in systems.items()}
    repetitions, warmups = (2, 1) if setting.toy else (REPETITIONS, WARMUPS)
    seconds = interleaved(steps, repetitions, warmups, setting.device, prepare, head_start=True)
    best, card = min(BOUNDS, key=lambda key: median(seconds[key])), rate(setting, sizes)
    work = 12 * sizes.tokens * sizes.hidden * sizes.inner  # two products, each forward and twice backward
    rows = [
        measured(f"dense layer ({num_experts} experts' turn)", 1000 * median(seconds[DENSE]), "ms",
                 f"{work / median(seconds[DENSE]) / card:.0%} of {card / 1e12:.0f} TFLOP/s"),
        measured(f"{best}, {num_experts} groups", 1000 * median(seconds[best]), "ms",
                 f"{Ratio.of(seconds[best], seconds[DENSE])} of the dense layer's time"),
    ]  # fmt: skip
    for key, gate in OURS.items():
        rows += figures(
            setting, f"{gate}, {num_experts} experts", seconds[key], seconds[DENSE], seconds[best], work, card
        )
    rows += beside(setting, systems, num_experts)
    del systems, steps, prepare
    free(setting)
    return rows


def figures(
    setting: Setting, what: str, own: list[float], dense: list[float], bound: list[float], work: int, card: float
) -> list[Row]:
    """One of our layers: milliseconds, and its two floors."""
    ratio, share = Ratio.of(own, dense), work / median(own) / card
    return [
        measured(what, 1000 * median(own), "ms", f"{Ratio.of(own, bound)} of the bare products' time"),
        figure(
            setting, f"{what}: time / dense", ratio.median, DENSE_FLOOR, f"quartiles {ratio.low:.3f}-{ratio.high:.3f}"
        ),
        figure(setting, f"{what}: share of the matmul rate", share, RATE_FLOOR, f"of {card / 1e12:.0f} TFLOP/s"),
    ]


def beside(setting: Setting, systems: dict[str, System], num_experts: int) -> list[Row]:
    """The host's time for a pass, and the memory of one beside weights and their gradients."""
    rows = []
    for key in (DENSE, *OURS):
        system, name = systems[key], f"{OURS.get(key, 'dense layer')}, {num_experts} experts"
        rows.append(measured(f"{name}: host's time", 1000 * host_seconds(setting, system), "ms", "to queue a pass"))
        system.prepare()
        peak = peak_bytes(setting.device, system.step)
        if peak is not None:
            kept = sum(value.grad.nbytes for value in system.module.parameters() if value.grad is not None)
            note = "at its peak, weights and their gradients aside"
            rows.append(measured(f"{name}: memory", (peak - kept) / 2**30, "GiB", note))
        system.module.zero_grad(set_to_none=True)
    return rows


def host_seconds(setting: Setting, system: System) -> float:
    """How long the host is busy with a pass, the best of several: it does not wait for what it queued."""
    found = []
    for _ in range(2 if setting.toy else 5):
        system.prepare()
        if setting.device != "cpu":
            torch.cuda.synchronize()
        start = time.perf_counter()
        system.step()
        found.append(time.perf_counter() - start)
    return min(found)
