"""Set-up of one sampling epoch: ours and that of fairseq's `translation_multi_simple_epoch`.

    python benchmarks/bench_epoch.py --write

From the sizes of 50 language pairs to the list of batches: which sentences are drawn, their order
by length with random ties, the filter of long ones, and the batches. Nothing is read from disk: the
pairs are fairseq's datasets with random lengths and without sentences.

Time is measured in turns; memory is the peak of a fresh process above what it held before.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch
from fairseq.data import Dictionary, LanguagePairDataset, data_utils
from fairseq.data.multilingual.sampled_multi_epoch_dataset import SampledMultiEpochDataset
from measure import Report, report_name, report_options
from timing import Floor, Ratio, interleaved

from fairseq_mtmoe.data.mixtures.training import TrainingMixture
from fairseq_mtmoe.data.sampling.plan import SamplingPlan
from fairseq_mtmoe.data.sampling.schedule import Schedule
from fairseq_mtmoe.data.translation.collating import PairCollate

NUM_PAIRS = 50
# Sentences of ML-50's largest and smallest pair; the others lie evenly between, in logarithms.
LARGEST = 45e6
SMALLEST = 5e3
TEMPERATURE = 1.5
MAX_SIZES = (256, 256)
MAX_TOKENS = 4096
MULTIPLE = 8
OURS = "ours"
FAIRSEQ = "fairseq"
MEGA = 1e6
# Time and memory, ours / fairseq's. At 1M pairs fixed costs show.
FLOORS = {1_000_000: (0.8, 0.9), 10_000_000: (0.6, 0.9)}
LARGE = 200_000_000
LARGE_SECONDS = 10.0
LARGE_GIGABYTES = 6.0
Pairs = Sequence[LanguagePairDataset]
Batches = list[np.ndarray]


def make_pairs(total: int) -> list[LanguagePairDataset]:
    """Return language pairs of `total` sentences, whose lengths are correlated as in real text."""
    shares = np.geomspace(LARGEST, SMALLEST, NUM_PAIRS)
    sizes = np.maximum(total * shares / shares.sum(), 1).astype(int)
    sizes[0] += total - sizes.sum()
    dictionary = Dictionary()
    pairs = []
    for seed, size in enumerate(sizes.tolist()):
        source, target = make_lengths(size, seed)
        sentences = range(size)
        pairs.append(
            LanguagePairDataset(sentences, source, dictionary, sentences, target, dictionary)
        )
    return pairs


def make_lengths(size: int, seed: int) -> np.ndarray:
    """Return (2, size) lengths: log-normal around 25, some of them beyond `MAX_SIZES`."""
    generator = np.random.default_rng(seed)
    lengths = np.empty((2, size), dtype=np.int32)
    for low in range(0, size, 1 << 20):
        part = lengths[:, low : low + (1 << 20)]
        source, ratio = generator.standard_normal(part.shape, dtype=np.float32)
        logarithm = 3.1 + 0.65 * source
        part[0] = 2 + np.exp(logarithm)
        part[1] = 2 + np.exp(logarithm + 0.05 + 0.25 * ratio)
    return lengths


def set_up_ours(pairs: Pairs, total: int, epoch: int) -> Batches:
    """Return the batches of an epoch, as the task makes them."""
    schedule = Schedule("temperature", TEMPERATURE, virtual_data_size=total)
    plan = SamplingPlan([[len(pair)] for pair in pairs], schedule, 1)
    keys = [f"main:en-{number}" for number in range(len(pairs))]
    loader: Any = SimpleNamespace(
        keys=keys, kind="pair", split="train", load=lambda shards: list(pairs)
    )
    dataset = TrainingMixture(loader, plan, range(len(pairs)), PairCollate())
    dataset.set_epoch(epoch)
    return dataset.batches(dataset.order(MAX_SIZES), MAX_TOKENS, None, MULTIPLE)


def set_up_fairseq(pairs: Pairs, total: int, epoch: int) -> Batches:
    """Return the batches of an epoch by the steps of fairseq's `create_batch_sampler_func`."""
    schedule = Schedule("temperature", TEMPERATURE)
    shares = schedule.probabilities_at(1, [len(pair) for pair in pairs])
    named = OrderedDict((f"main:en-{number}", pair) for number, pair in enumerate(pairs))
    dataset = SampledMultiEpochDataset(
        named,
        shares,
        seed=1,
        epoch=epoch,
        virtual_size=total,
        virtual_epoch_size=None,
        shared_collater=True,
    )
    with data_utils.numpy_seed(1):
        indices = dataset.ordered_indices()
    indices, _ = dataset.filter_indices_by_size(indices, MAX_SIZES)
    return dataset.batch_by_size(indices, MAX_TOKENS, None, MULTIPLE)


SYSTEMS: dict[str, Callable[[Pairs, int, int], Batches]] = {
    OURS: set_up_ours,
    FAIRSEQ: set_up_fairseq,
}


class Turns:
    """A system that sets the next epoch up at each call."""

    def __init__(self, name: str, pairs: Pairs, total: int) -> None:
        self.name = name
        self.pairs = pairs
        self.total = total
        self.epoch = 0

    def __call__(self) -> None:
        self.epoch += 1
        SYSTEMS[self.name](self.pairs, self.total, self.epoch)


def resident(which: str) -> float:
    """Return the MB that this process holds (`VmRSS`), or held at most (`VmHWM`)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    lines = [line for line in status.splitlines() if line.startswith(which)]
    return int(lines[0].split()[1]) * 1024 / MEGA


def _measure_alone(name: str, total: int, results: Any) -> None:
    logging.disable(logging.WARNING)
    SYSTEMS[name](make_pairs(1000), 1000, 1)  # What is imported late is no memory of an epoch.
    pairs = make_pairs(total)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # Forget the peak so far.
    before = resident("VmRSS")
    start = time.perf_counter()
    SYSTEMS[name](pairs, total, 1)
    results.put((time.perf_counter() - start, resident("VmHWM") - before))


def measure_alone(name: str, total: int) -> tuple[float, float]:
    """Return seconds, and peak MB above the start, of one set-up in a process of its own."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_measure_alone, args=(name, total, results))
    process.start()
    seconds, megabytes = results.get(timeout=600)
    process.join()
    return seconds, megabytes


def compare(report: Report, total: int, repetitions: int) -> None:
    """Compare time and memory of both systems on `total` sentence pairs."""
    pairs = make_pairs(total)
    works = {name: Turns(name, pairs, total) for name in SYSTEMS}
    seconds = interleaved(works, repetitions, warmups=1)
    memory = {name: measure_alone(name, total)[1] for name in SYSTEMS}
    rows = [[name, float(np.median(seconds[name])), memory[name]] for name in SYSTEMS]
    title = f"{total / MEGA:g}M pairs"
    note = "Memory: peak above what the process held before, one fresh process each."
    report.table(title, ["system", "seconds (median)", "peak MB"], rows, note)
    ratio = Ratio.of(seconds[OURS], seconds[FAIRSEQ])
    time_floor, memory_floor = FLOORS[total]
    spread = (ratio.low, ratio.high)
    report.figure(f"{title}: time, ours / fairseq", ratio.median, Floor(time_floor), spread)
    share = memory[OURS] / memory[FAIRSEQ]
    report.figure(f"{title}: memory, ours / fairseq", share, Floor(memory_floor))


@click.command()
@click.option("--large", is_flag=True, help="Measure ours with 200M pairs, too, up to 6 GB.")
@click.option("--repetitions", type=click.IntRange(5), default=5, help="Timed turns.")
@report_options("1M pairs alone.")
def main(large: bool, repetitions: int, small: bool, check: bool, write: bool) -> None:
    """Measure the set-up of one sampling epoch of 50 language pairs, ours and fairseq's."""
    logging.disable(logging.WARNING)
    small = small or check
    title = "Set-up of one sampling epoch, 50 language pairs"
    report = Report(report_name("epoch", small), title)
    report.text(
        f"Temperature {TEMPERATURE}, batches of {MAX_TOKENS} tokens in multiples of {MULTIPLE}, "
        f"sentences of up to {MAX_SIZES[0]} tokens; {torch.get_num_threads()} threads for ours, "
        "fairseq has one."
    )
    for total in (1_000_000,) if small else (1_000_000, 10_000_000):
        compare(report, total, repetitions)
    if large:
        seconds, megabytes = measure_alone(OURS, LARGE)
        title = f"{LARGE / MEGA:g}M pairs"
        report.figure(f"{title}: seconds", seconds, Floor(LARGE_SECONDS))
        report.figure(f"{title}: GB above start", megabytes / 1000, Floor(LARGE_GIGABYTES))
    report.finish(write, check)


if __name__ == "__main__":
    main()
