"""Part `decode`: generation with beam 5, `base_moe_wmt15` beside stock fairseq's dense `transformer`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import torch
from bench_decode import APART, STOCK, batches, check_equal, systems
from fairseq.utils import apply_to_sample
from timing import Floor, interleaved
from wmt15_models import Size, sentences, translation_task

from gpu_check.rows import Check, Row, Setting, measured, passed, ratio
from gpu_check.step import TINY

WORDS, TOY_WORDS = 24, 4
REPETITIONS, WARMUPS = 5, 2
FLOOR = Floor(0.9, at_most=False)


def checks(setting: Setting) -> Iterator[Check]:
    yield Check("hypotheses", partial(same_hypotheses, setting))
    for batch_size in (4,) if setting.toy else (32, 256):
        yield Check(f"{batch_size} sentences a batch", partial(compared, setting, batch_size))


def same_hypotheses(setting: Setting) -> list[Row]:
    """In float32 a sparse model whose experts are copies finds what stock fairseq's finds."""
    found, samples = systems_and_samples(setting, torch.float32, 8, 1)
    return [passed("hypotheses of equal experts in float32", check_equal(found, samples[0]))]


def compared(setting: Setting, batch_size: int) -> list[Row]:
    dtype = torch.float32 if setting.device == "cpu" else torch.bfloat16
    repetitions, warmups = (2, 0) if setting.toy else (REPETITIONS, WARMUPS)
    found, samples = systems_and_samples(setting, dtype, batch_size, repetitions)
    for system in found.values():
        system.feed(samples)
    seconds = interleaved(found, repetitions, warmups, setting.device)
    rows = []
    for name, own in seconds.items():
        rows.append(measured(f"{batch_size} sentences, {name}", batch_size / median(own), "sentences/s"))
    what = f"{batch_size} sentences, {APART}: speed over stock fairseq's"
    rows.append(ratio(setting, what, seconds[STOCK], seconds[APART], FLOOR))
    return rows


def systems_and_samples(
    setting: Setting, dtype: torch.dtype, batch_size: int, count: int
) -> tuple[dict[str, Any], list[Any]]:
    """Return the systems of `bench_decode` on the device, and batches for them."""
    logging.disable(logging.INFO)
    size = Size(**(TINY if setting.toy else {}))
    task, words = translation_task(size), TOY_WORDS if setting.toy else WORDS
    found = systems(size, task, words)
    for system in found.values():
        system.model.to(setting.device, dtype)
    data = sentences(task, count=2000 if setting.toy else 20_000)
    samples = batches(data, words, batch_size, count)
    return found, [apply_to_sample(lambda x: x.to(setting.device), sample) for sample in samples]
