"""Set-up of one sampling epoch: ours beside that of fairseq's `translation_multi_simple_epoch`.

From the sizes of 50 language pairs to the list of batches: which sentences are drawn, their order by length with random
ties, the filter of long ones, and the batches. Nothing is read from disk: the pairs are fairseq's own datasets with
random lengths and without sentences.

Time is measured interleaved; memory as the peak of a fresh process above what it held before.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch
from fairseq.data import Dictionary, LanguagePairDataset, data_utils
from fairseq.data.multilingual.sampled_multi_dataset import SampledMultiDataset
from fairseq.data.multilingual.sampled_multi_epoch_dataset import SampledMultiEpochDataset
from measure import Report, interleaved, report_name, report_options
from timing import Floor, Ratio

from fairseq_mtmoe.data.mixtures.training import TrainingMixture
from fairseq_mtmoe.data.sampling.plan import SamplingPlan
from fairseq_mtmoe.data.sampling.schedule import Schedule
from fairseq_mtmoe.data.translation.collating import PairCollate

NUM_PAIRS = 50
LARGEST, SMALLEST = 45e6, 5e3  # sentences of pairs of ML-50, about; the others lie evenly between, in logarithms
TEMPERATURE = 1.5
MAX_SIZES = (256, 256)
MAX_TOKENS, MULTIPLE = 4096, 8
VIRTUAL_EPOCH = 1_000_000
OURS, FAIRSEQ, FAIRSEQ_PLAIN = "ours", "SampledMultiEpochDataset", "SampledMultiDataset"
MEGA = 1e6
# Time and memory, ours / fairseq's. What is asked for is asked at 10M pairs; at 1M, fixed costs show.
FLOORS = {1_000_000: (0.4, 0.5), 10_000_000: (0.1, 0.3)}


def make_pairs(total: int, num_pairs: int = NUM_PAIRS) -> list[LanguagePairDataset]:
    """Language pairs of `total` sentences in all, whose source and target lengths are correlated as in real text."""
    shares = np.geomspace(LARGEST, SMALLEST, num_pairs)
    sizes = np.maximum(total * shares / shares.sum(), 1).astype(int)
    sizes[0] += total - sizes.sum()
    dictionary = Dictionary()
    pairs = []
    for number, size in enumerate(sizes.tolist()):
        source, target = make_lengths(size, number)
        pairs.append(LanguagePairDataset(range(size), source, dictionary, range(size), target, dictionary))
    return pairs


def make_lengths(size: int, seed: int) -> np.ndarray:
    """(2, size) lengths: log-normal around 25, with some sentences beyond `MAX_SIZES`."""
    generator = np.random.default_rng(seed)
    lengths = np.empty((2, size), dtype=np.int32)
    for low in range(0, size, 1 << 20):
        part = lengths[:, low : low + (1 << 20)]
        source, ratio = generator.standard_normal(part.shape, dtype=np.float32)
        logarithm = 3.1 + 0.65 * source
        part[0] = 2 + np.exp(logarithm)
        part[1] = 2 + np.exp(logarithm + 0.05 + 0.25 * ratio)
    return lengths


def schedule(**sizes: int | None) -> Schedule:
    return Schedule("temperature", TEMPERATURE, **sizes)


def our_dataset(pairs: Sequence[LanguagePairDataset], drawn: int, virtual: int | None) -> TrainingMixture:
    """The training data as the task builds it; an epoch is of `virtual` sentences, or of `drawn`."""
    sizes = schedule(virtual_epoch_size=virtual, virtual_data_size=drawn)
    plan = SamplingPlan([[len(pair)] for pair in pairs], sizes, 1)
    keys = [f"main:en-{number}" for number in range(len(pairs))]
    loader: Any = SimpleNamespace(keys=keys, kind="pair", split="train", load=lambda shards: list(pairs))
    return TrainingMixture(loader, plan, range(len(pairs)), PairCollate())


def set_up_ours(pairs: Sequence[LanguagePairDataset], drawn: int, virtual: int | None, epoch: int) -> list[np.ndarray]:
    dataset = our_dataset(pairs, drawn, virtual)
    dataset.set_epoch(epoch)
    return dataset.batches(dataset.order(MAX_SIZES), MAX_TOKENS, None, MULTIPLE)


def fairseq_dataset(
    name: str, pairs: Sequence[LanguagePairDataset], drawn: int, virtual: int | None, epoch: int
) -> SampledMultiDataset:
    """fairseq's: `SampledMultiDataset` is what it takes without virtual epochs, the other with them."""
    kind, options = (SampledMultiDataset, {}) if name == FAIRSEQ_PLAIN else (
        SampledMultiEpochDataset, {"virtual_epoch_size": virtual})  # fmt: skip
    shares = schedule().probabilities_at(1, [len(pair) for pair in pairs])
    named = OrderedDict((f"main:en-{number}", pair) for number, pair in enumerate(pairs))
    return kind(named, shares, seed=1, epoch=epoch, virtual_size=drawn, shared_collater=True, **options)


def set_up_fairseq(
    name: str, pairs: Sequence[LanguagePairDataset], drawn: int, virtual: int | None, epoch: int
) -> list[np.ndarray]:
    """The steps of `create_batch_sampler_func` in its task."""
    dataset = fairseq_dataset(name, pairs, drawn, virtual, epoch)
    with data_utils.numpy_seed(1):
        indices = dataset.ordered_indices()
    indices, _ = dataset.filter_indices_by_size(indices, MAX_SIZES)
    return dataset.batch_by_size(indices, MAX_TOKENS, None, MULTIPLE)


def system(name: str) -> Callable[..., list[np.ndarray]]:
    return set_up_ours if name == OURS else partial(set_up_fairseq, name)


# ---- is it right? ----


def check_epochs(total: int) -> str:
    """Compare ours with what it should be, on `total` sentences; says what was found to hold."""
    pairs = make_pairs(total)
    for virtual in (None, total // 7):
        dataset = our_dataset(pairs, total, virtual)
        order = dataset.order(MAX_SIZES)
        check_order(dataset, pairs, order, virtual or total)
        kept = order.indices.astype(np.int64)
        expected = dataset.batch_by_size(kept, MAX_TOKENS, None, MULTIPLE)
        found = dataset.batches(order, MAX_TOKENS, None, MULTIPLE)
        assert [len(batch) for batch in found] == [len(batch) for batch in expected]
        assert np.array_equal(np.concatenate(found), kept)
    return (
        f"Checked on {total / MEGA:g}M pairs: each pair gives its share; no sentence comes twice before all of its "
        "pair came once; the order is by source and target length; the batches are those of fairseq's `batch_by_size`."
    )


def check_order(dataset: TrainingMixture, pairs: Sequence[LanguagePairDataset], order: Any, drawn: int) -> None:
    """One epoch's sentences: how many of each pair, how often each, and in which order."""
    indices = np.concatenate([order.indices, order.too_long])
    assert len(indices) == len(dataset) == drawn
    located, sentences = dataset.numbering.locate_all(indices)
    shares = schedule().probabilities_at(1, [len(pair) for pair in pairs])
    assert np.abs(np.bincount(located, minlength=len(pairs)) - shares * drawn).max() <= 1
    for number, pair in enumerate(pairs):
        times = np.bincount(sentences[located == number], minlength=len(pair))
        assert times.max() - times.min() <= 1
    lengths = dataset.sizes_of(order.indices)
    code = lengths[:, 0] * (MAX_SIZES[1] + 1) + lengths[:, 1]
    assert (np.diff(code) >= 0).all() and (lengths <= MAX_SIZES).all()
    assert (dataset.sizes_of(order.too_long) > MAX_SIZES).any(axis=1).all()


# ---- memory ----


def resident(which: str) -> float:
    """MB that this process holds (VmRSS), or held at most (VmHWM)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith(which)).split()[1]) * 1024 / MEGA


def _measure_alone(name: str, total: int, virtual: int | None, results: Any) -> None:
    logging.disable(logging.WARNING)
    system(name)(make_pairs(1000), 1000, None, 1)  # what is imported late is no memory of an epoch
    pairs = make_pairs(total)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forgets the peak so far
    before = resident("VmRSS")
    start = time.perf_counter()
    batches = system(name)(pairs, total, virtual, 1)
    seconds = time.perf_counter() - start
    results.put((seconds, resident("VmHWM") - before, resident("VmHWM"), len(batches)))


def alone(name: str, total: int, virtual: int | None) -> tuple[float, float, float, int]:
    """Seconds, peak MB above the start, peak MB in all and batches of one set-up in a process of its own."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_measure_alone, args=(name, total, virtual, results))
    process.start()
    found = results.get(timeout=600)
    process.join()
    return found


# ---- tables ----


def compare(report: Report, total: int, repetitions: int) -> None:
    pairs = make_pairs(total)
    rows: list[list[object]] = []
    for virtual in (None, VIRTUAL_EPOCH) if total > VIRTUAL_EPOCH else (None,):
        names = [OURS, FAIRSEQ] if virtual else [OURS, FAIRSEQ, FAIRSEQ_PLAIN]
        epochs = itertools.count(1)
        works = {name: lambda name=name: system(name)(pairs, total, virtual, next(epochs)) for name in names}  # noqa: B023
        seconds = interleaved(works, repetitions, warmups=1)
        memory = {name: alone(name, total, virtual)[1] for name in names}
        what = f"{total / MEGA:g}M pairs, " + (f"virtual epoch of {virtual / MEGA:g}M" if virtual else "all drawn")
        for name in names:
            ratio, share = Ratio.of(seconds[OURS], seconds[name]), memory[OURS] / memory[name]
            rows.append([what, name, float(np.median(seconds[name])), str(ratio), memory[name], share])
            if name == FAIRSEQ and virtual is None:
                time_floor, memory_floor = FLOORS[total]
                report.figure(f"{what}: time, ours / fairseq", ratio.median, Floor(time_floor), (ratio.low, ratio.high))
                report.figure(f"{what}: memory, ours / fairseq", share, Floor(memory_floor))
    columns = ["set-up", "system", "seconds (median)", "ours / this, time", "peak MB", "ours / this, memory"]
    note = "Memory: peak above what the process held before, one fresh process each."
    report.table(f"{total / MEGA:g}M pairs", columns, rows, note)


def growth(report: Report, totals: Sequence[int], large: bool) -> None:
    rows: list[list[object]] = []
    virtual: dict[int, tuple[float, float]] = {}
    for total in totals:
        for size in (VIRTUAL_EPOCH, None):
            found = [alone(OURS, total, size) for _ in range(3 if size else 1)]
            seconds, above, peak = (float(np.median([one[column] for one in found])) for column in range(3))
            rows.append([f"{total / MEGA:g}M", f"{size / MEGA:g}M" if size else "all", seconds, above, peak])
            if size:
                virtual[total] = seconds, above
            elif large and total == totals[-1]:
                report.figure(f"{total / MEGA:g}M pairs: seconds", seconds, Floor(10.0))
                report.figure(f"{total / MEGA:g}M pairs: GB above start", above / 1000, Floor(6.0))
    report.table("Ours as the data grow", ["pairs", "epoch", "seconds", "peak MB above start", "peak MB in all"], rows)
    if large:
        (first, last), what = (totals[0], totals[-1]), f"virtual epoch of {VIRTUAL_EPOCH / MEGA:g}M"
        ends = f"{last / MEGA:g}M / {first / MEGA:g}M pairs"
        report.figure(f"{what}: time, {ends}", virtual[last][0] / virtual[first][0], Floor(1.5))
        report.figure(f"{what}: memory, {ends}", virtual[last][1] / virtual[first][1], Floor(1.5))


@click.command()
@click.option("--large", is_flag=True, help="Measure ours with 200M pairs too: takes minutes and up to 6 GB.")
@click.option("--repetitions", type=click.IntRange(5), default=5, show_default=True, help="Timed turns.")
@report_options("1M pairs alone.")
def main(large: bool, repetitions: int, small: bool, check: bool, write: bool) -> None:
    """Measure the set-up of one sampling epoch of 50 language pairs, ours and fairseq's."""
    logging.disable(logging.WARNING)
    small = small or check
    report = Report(report_name("epoch", small), "Set-up of one sampling epoch, 50 language pairs")
    report.text(
        f"Temperature {TEMPERATURE}, batches of {MAX_TOKENS} tokens in multiples of {MULTIPLE}, sentences of up to "
        f"{MAX_SIZES[0]} tokens; {torch.get_num_threads()} threads for ours, fairseq has one."
    )
    report.text(check_epochs(100_000 if small else 1_000_000))
    for total in (1_000_000,) if small else (1_000_000, 10_000_000):
        compare(report, total, repetitions)
    if not small:
        growth(report, (10_000_000, 200_000_000) if large else (1_000_000, 10_000_000), large)
    report.finish(write, check)


if __name__ == "__main__":
    main()
