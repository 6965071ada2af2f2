"""Part `step`: a training step in bfloat16 of the named architectures beside stock fairseq's dense `transformer`.

Both in fairseq's own trainer, on the same batches in turn: the stock model with what its users give it, ours with this
plugin's loss and Adam (see `bench_step.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice
from statistics import median
from typing import Any

from bench_step import SPARSE, STOCK, systems
from timing import Floor, interleaved
from wmt15_models import Size, batches, sentences, translation_task

from gpu_check.rows import Check, Row, Setting, measured, ratio

ML50 = dict(width=1024, inner=4096, layers=12, heads=16, symbols=64_000)
PLANS: list[tuple[str, int, dict[str, Any]]] = [
    ("base_moe_wmt15", 8192, {}), ("base_moe_wmt15", 32_768, {}), ("base_moe_ml50", 8192, ML50),
]  # fmt: skip
TINY = dict(width=16, inner=32, layers=2, heads=2, num_experts=4, symbols=200)
FLOOR = Floor(1.0, at_most=False)


def checks(setting: Setting) -> Iterator[Check]:
    for name, max_tokens, sizes in [("tiny", 512, TINY)] if setting.toy else PLANS:
        what = f"{name}, {max_tokens:,} tokens"
        yield Check(what, partial(compared, setting, what, max_tokens, sizes))


def compared(setting: Setting, what: str, max_tokens: int, sizes: dict[str, Any]) -> list[Row]:
    """Tokens per second of both, after their losses and gradients were compared."""
    logging.disable(logging.INFO)
    repetitions, warmups = setting.turns
    size = Size(**sizes)
    task = translation_task(size)
    made = batches(sentences(task, 2000 if setting.toy else 300_000), max_tokens)
    samples = list(islice(cycle(islice(made, warmups + repetitions)), warmups + repetitions))
    where = ("--cpu",) if setting.device == "cpu" else ("--bf16",)
    pair = {name: system for name, system in systems(size, task, samples, where).items() if name in (STOCK, SPARSE)}
    seconds = interleaved(pair, repetitions, warmups, setting.device)
    tokens = [sample["ntokens"] for sample in samples[warmups:]]
    rows = []
    for name, own in seconds.items():
        speed = median(count / each for count, each in zip(tokens, own, strict=True))
        rows.append(measured(f"{what}, {name}", speed, "target tokens/s"))
    rows.append(ratio(setting, f"{what}: tokens/s over stock fairseq's", seconds[STOCK], seconds[SPARSE], FLOOR))
    return rows
