"""Part `paper`: some hundred updates of the paper's WMT-15 architecture at full size, beside stock fairseq's dense one.

Where `step` times single steps, here both models train on: losses must be finite and fall, in bfloat16, and the tokens
per second are those of a run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import partial
from statistics import mean, median
from typing import Any

import torch
from timing import Floor, Ratio

from gpu_check.device import free
from gpu_check.rows import Check, Row, Setting, figure, measured, passed
from gpu_check.step import TINY, Plan, trained_pair

PLAN = Plan("base_moe_wmt15", 8192, Floor(1.0, at_most=False), {})
TOY_PLAN = Plan("base_moe_wmt15, tiny", 512, Floor(1.0, at_most=False), TINY)
ROUNDS, UPDATES = 6, 50  # rounds of updates, in which the models take turns; the first one warms up
TOY_ROUNDS, TOY_UPDATES = 2, 2


def checks(setting: Setting) -> Iterator[Check]:
    yield Check("updates", partial(trained, setting))


def trained(setting: Setting) -> list[Row]:
    """Tokens per second of each round, and the losses of the first and the last."""
    plan = TOY_PLAN if setting.toy else PLAN
    rounds, updates = (TOY_ROUNDS, TOY_UPDATES) if setting.toy else (ROUNDS, UPDATES)
    systems, samples = trained_pair(setting, plan, rounds * updates)
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    losses: dict[str, list[float]] = {name: [] for name in systems}
    for number in range(rounds):
        part = samples[number * updates : (number + 1) * updates]
        for name, system in systems.items():
            start = time.perf_counter()
            losses[name] += [train_step(system, sample) for sample in part]
            if setting.device != "cpu":
                torch.cuda.synchronize()
            seconds[name].append(time.perf_counter() - start)
        took = ", ".join(f"{name} {own[-1]:.1f} s" for name, own in seconds.items())
        print(f"   round {number + 1} of {rounds}: {took}", flush=True)
    tokens = [sum(sample["ntokens"] for sample in samples[n * updates : (n + 1) * updates]) for n in range(1, rounds)]
    rows = []
    for name in systems:
        speed = median(count / own for count, own in zip(tokens, seconds[name][1:], strict=True))
        what = f"{plan.name}, {rounds * updates} updates, {name}"
        first, last = mean(losses[name][:updates]), mean(losses[name][-updates:])
        assert all(map(math.isfinite, losses[name])), f"{name}: a loss is not finite"
        assert last < first or setting.toy, f"{name}: the loss went from {first:.2f} to {last:.2f}"
        rows.append(measured(what, speed, "target tokens/s", f"loss {first:.2f}, at the end {last:.2f}"))
    ratio = Ratio.of(seconds["stock"][1:], seconds["ours"][1:])
    what = f"{plan.name}, {rounds * updates} updates: tokens/s over stock fairseq's"
    rows.append(figure(setting, what, ratio.median, plan.floor, f"of rounds of {updates} updates"))
    rows.append(passed("losses are finite, and fall"))
    del systems
    free(setting)
    return rows


def train_step(system: Any, sample: dict[str, Any]) -> float:
    output = system.trainer.train_step([sample])
    return math.nan if output is None else float(output["loss"])
