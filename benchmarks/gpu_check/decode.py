"""Part `decode`: generation with beam 5, `base_moe_wmt15` beside stock fairseq's dense `transformer`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from timing import Floor, Ratio, interleaved

from gpu_check.rows import Check, Row, Setting, figure, measured, passed

WORDS, TOY_WORDS = 24, 4
REPETITIONS, WARMUPS = 5, 2
FLOOR = Floor(0.9, at_most=False)


def checks(setting: Setting) -> Iterator[Check]:
    yield Check("hypotheses", partial(same_hypotheses, setting))
    for batch_size in (4,) if setting.toy else (32, 256):
        yield Check(f"{batch_size} sentences a batch", partial(compared, setting, batch_size))


def same_hypotheses(setting: Setting) -> list[Row]:
    """In float32 a sparse model whose experts are copies finds what stock fairseq's finds."""
    from bench_decode import check_equal

    systems, samples = systems_and_samples(setting, torch.float32, 8, 1)
    return [passed("hypotheses of equal experts in float32", check_equal(systems, samples[0]))]


def compared(setting: Setting, batch_size: int) -> list[Row]:
    from bench_decode import APART, STOCK

    dtype = torch.float32 if setting.device == "cpu" else torch.bfloat16
    repetitions, warmups = (2, 0) if setting.toy else (REPETITIONS, WARMUPS)
    systems, samples = systems_and_samples(setting, dtype, batch_size, repetitions)
    for system in systems.values():
        system.feed(samples)
    seconds = interleaved(systems, repetitions, warmups, setting.device)
    rows = []
    for name, own in seconds.items():
        rows.append(measured(f"{batch_size} sentences, {name}", batch_size / median(own), "sentences/s"))
    ratio = Ratio.of(seconds[STOCK], seconds[APART])
    what = f"{batch_size} sentences, {APART}: speed over stock fairseq's"
    rows.append(figure(setting, what, ratio.median, FLOOR, f"quartiles {ratio.low:.3f}-{ratio.high:.3f}"))
    return rows


def systems_and_samples(
    setting: Setting, dtype: torch.dtype, batch_size: int, count: int
) -> tuple[dict[str, Any], list[Any]]:
    """Return the systems of `bench_decode` on the device, and batches for them."""
    import bench_decode
    from fairseq.utils import apply_to_sample
    from wmt15_models import Size, sentences, translation_task

    from gpu_check.step import TINY

    logging.disable(logging.INFO)
    size = Size(**(TINY if setting.toy else {}))
    task, words = translation_task(size), TOY_WORDS if setting.toy else WORDS
    systems = bench_decode.systems(size, task, words)
    for system in systems.values():
        system.model.to(setting.device, dtype)
    data = sentences(task, count=2000 if setting.toy else 20_000)
    samples = bench_decode.batches(data, words, batch_size, count)
    return systems, [apply_to_sample(lambda x: x.to(setting.device), sample) for sample in samples]
