"""Part `step`: a training step in bfloat16 of the named architectures beside stock fairseq's dense `transformer`.

Both in fairseq's own trainer, on the same batches in turn: the stock model with what its users give it, ours with this
plugin's loss and Adam (see `bench_step.py`, which says what comes from where).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import Any

import torch
from timing import Floor, Ratio, interleaved

from gpu_check.rows import Check, Row, Setting, figure, measured


@dataclass(frozen=True)
class Plan:
    """An architecture with the batches that its configuration in `configs/base_sparse` trains with, or larger ones."""

    name: str
    max_tokens: int
    floor: Floor
    sizes: dict[str, int]


ML50 = dict(width=1024, inner=4096, layers=12, heads=16, symbols=64_000)
PLANS = (
    Plan("base_moe_wmt15", 8192, Floor(1.0, at_most=False), {}),
    Plan("base_moe_wmt15", 32_768, Floor(1.0, at_most=False), {}),
    Plan("base_moe_ml50", 8192, Floor(0.95, at_most=False), ML50),
)
TINY = dict(width=16, inner=32, layers=2, heads=2, num_experts=4, symbols=200)
TOY_PLANS = (Plan("base_moe_wmt15, tiny", 512, Floor(1.0, at_most=False), TINY),)
REPETITIONS, WARMUPS = 15, 5


def checks(setting: Setting) -> Iterator[Check]:
    for plan in TOY_PLANS if setting.toy else PLANS:
        yield Check(f"{plan.name}, {plan.max_tokens:,} tokens", partial(compared, setting, plan))


def compared(setting: Setting, plan: Plan) -> list[Row]:
    """Tokens per second of both, after their losses and gradients were compared."""
    repetitions, warmups = (2, 1) if setting.toy else (REPETITIONS, WARMUPS)
    systems, samples = trained_pair(setting, plan, warmups + repetitions)
    seconds = interleaved(systems, repetitions, warmups, setting.device)
    tokens = [sample["ntokens"] for sample in samples[warmups:]]
    rows = []
    for name, own in seconds.items():
        speed = median(count / each for count, each in zip(tokens, own, strict=True))
        rows.append(measured(f"{plan.name} ({plan.max_tokens:,} tokens), {name}", speed, "target tokens/s"))
    ours, stock = seconds["ours"], seconds["stock"]
    ratio = Ratio.of(stock, ours)  # on the same batch, the inverse of the times'
    what = f"{plan.name} ({plan.max_tokens:,} tokens): tokens/s over stock fairseq's"
    rows.append(figure(setting, what, ratio.median, plan.floor, f"quartiles {ratio.low:.3f}-{ratio.high:.3f}"))
    return rows


def trained_pair(setting: Setting, plan: Plan, steps: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """`stock` and `ours`, which take a step on the next of these batches when they are called, and the batches."""
    from bench_step import COMMON, OURS, STOCKS, System, check_equal
    from wmt15_models import Size, batches, models, sentences, sparse_config, stock_config, translation_task

    logging.disable(logging.INFO)
    size = Size(**plan.sizes)
    task = translation_task(size)
    samples = list(islice(batches(sentences(task, 2000 if setting.toy else 300_000), plan.max_tokens), steps))
    samples = list(islice(cycle(samples), steps))
    pair = models(size, task)
    check_equal(task, pair, samples[0])
    where = ("--cpu",) if setting.device == "cpu" else ("--bf16",)
    torch.manual_seed(1)
    systems = {
        name: System(task, pair[model], config(size, *COMMON, *where, *chosen), samples)
        for name, model, config, chosen in (
            ("stock", "stock", stock_config, STOCKS),
            ("ours", "sparse", sparse_config, OURS),
        )
    }
    return systems, samples
