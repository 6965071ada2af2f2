"""Part `decode`: generation with beam 5, `base_moe_wmt15` beside stock fairseq's dense `transformer`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import torch
from timing import Floor, Ratio, interleaved

from gpu_check.device import free, short
from gpu_check.rows import Check, Row, Setting, figure, measured, passed

BATCH_SIZES, WORDS = (32, 256), 24
TOY_BATCH_SIZES, TOY_WORDS = (4,), 4
REPETITIONS, WARMUPS = 5, 2
FLOOR = Floor(0.9, at_most=False)
SAME = 0.9  # of the hypotheses, word for word: those whose scores differ by rounding alone may change places


def checks(setting: Setting) -> Iterator[Check]:
    yield Check("hypotheses", partial(same_hypotheses, setting))
    for batch_size in TOY_BATCH_SIZES if setting.toy else BATCH_SIZES:
        yield Check(f"{batch_size} sentences a batch", partial(compared, setting, batch_size))


def same_hypotheses(setting: Setting) -> list[Row]:
    """In float32 a sparse model whose experts are copies finds what stock fairseq's finds."""
    running, data = systems(setting, torch.float32)
    (sample,) = samples_of(setting, data, 8, 1)
    found = {}
    for name, system in running.items():
        system.feed([sample])
        found[name] = [hypothesis["tokens"].tolist() for hypothesis in chain.from_iterable(system())]
    stock, copies, _ = found.values()
    equal = sum(one == other for one, other in zip(stock, copies, strict=True)) / len(stock)
    assert equal >= SAME, f"only {equal:.0%} of the hypotheses are stock fairseq's"
    free(setting)
    return [passed("hypotheses of equal experts in float32", f"{equal:.0%} are stock fairseq's, word for word")]


def compared(setting: Setting, batch_size: int) -> list[Row]:
    dtype = torch.float32 if setting.device == "cpu" else torch.bfloat16
    running, data = systems(setting, dtype)
    repetitions, warmups = (2, 0) if setting.toy else (REPETITIONS, WARMUPS)
    samples = samples_of(setting, data, batch_size, repetitions)
    for system in running.values():
        system.feed(samples)
    seconds = interleaved(running, repetitions, warmups, setting.device)
    rows, stock = [], next(iter(seconds))
    for name, own in seconds.items():
        what, ratio = f"{batch_size} sentences, {short(dtype)}, {name}", Ratio.of(seconds[stock], own)
        rows.append(measured(what, batch_size / median(own), "sentences/s"))
        if name != stock:
            note = f"quartiles {ratio.low:.3f}-{ratio.high:.3f}"
            rows.append(figure(setting, f"{what}: over stock fairseq's", ratio.median, FLOOR, note))
    del running
    free(setting)
    return rows


def systems(setting: Setting, dtype: torch.dtype) -> tuple[dict[str, Any], Any]:
    """Stock fairseq's model, ours with experts that are copies, and that differ, on the device; and sentences."""
    import bench_decode
    from wmt15_models import Size, sentences, translation_task

    from gpu_check.step import TINY

    logging.disable(logging.INFO)
    size = Size(**(TINY if setting.toy else {}))
    task = translation_task(size)
    built = bench_decode.systems(size, task, TOY_WORDS if setting.toy else WORDS)
    chosen = {name: built[name] for name in (bench_decode.STOCK, bench_decode.COPIES, bench_decode.APART)}
    for system in chosen.values():
        system.model.to(setting.device, dtype)
    return chosen, sentences(task, count=2000 if setting.toy else 20_000)


def samples_of(setting: Setting, data: Any, batch_size: int, count: int) -> list[Any]:
    from bench_decode import batches
    from fairseq.utils import apply_to_sample

    words = TOY_WORDS if setting.toy else WORDS
    return [apply_to_sample(lambda x: x.to(setting.device), each) for each in batches(data, words, batch_size, count)]
