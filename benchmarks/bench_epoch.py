"""Set-up of one sampling epoch: ours and that of fairseq's `translation_multi_simple_epoch`.

    python benchmarks/bench_epoch.py --write

From the sizes of 50 language pairs to the list of batches: which sentences are drawn, their order by length with random
ties, the filter of long ones, and the batches. Nothing is read from disk: the pairs are fairseq's datasets with random
lengths and without sentences. Time is measured in turns; memory is the peak of a fresh process above what it held
before.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
import torch
from fairseq.data import Dictionary, LanguagePairDataset, data_utils
from fairseq.data.multilingual.sampled_multi_epoch_dataset import SampledMultiEpochDataset
from measure import Report, benchmark
from timing import Floor, interleaved

from fairseq_mtmoe.multitask.mixtures.dataset import BatchLimits
from fairseq_mtmoe.multitask.mixtures.training import TrainingMixture
from fairseq_mtmoe.multitask.sampling.plan import SamplingPlan
from fairseq_mtmoe.multitask.sampling.schedule import Schedule
from fairseq_mtmoe.translation.data.collating import PairCollate

NUM_PAIRS = 50
# Sentences of ML-50's largest and smallest pair; the others lie evenly between, in logarithms.
LARGEST, SMALLEST = 45e6, 5e3
TEMPERATURE = 1.5
MAX_SIZES = (256, 256)
MAX_TOKENS, MULTIPLE = 4096, 8
MEGA = 1e6
# Time and memory, ours / fairseq's. At 1M pairs fixed costs show.
FLOORS = {1_000_000: (0.8, 0.9), 10_000_000: (0.6, 0.9)}
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
        pairs.append(LanguagePairDataset(sentences, source, dictionary, sentences, target, dictionary))
    return pairs


def make_lengths(size: int, seed: int) -> np.ndarray:
    """Return (2, size) lengths: log-normal around 25, some of them beyond `MAX_SIZES`."""
    source, ratio = np.random.default_rng(seed).standard_normal((2, size), dtype=np.float32)
    logarithm = 3.1 + 0.65 * source
    lengths = [2 + np.exp(logarithm), 2 + np.exp(logarithm + 0.05 + 0.25 * ratio)]
    return np.array(lengths).astype(np.int32)


def set_up_ours(pairs: Pairs, total: int, epoch: int) -> Batches:
    """Return the batches of an epoch, as the task makes them."""
    schedule = Schedule("temperature", TEMPERATURE, virtual_data_size=total)
    plan = SamplingPlan([[len(pair)] for pair in pairs], schedule, 1)
    dataset = TrainingMixture(lambda shards: list(pairs), plan, range(len(pairs)), PairCollate())
    dataset.set_epoch(epoch)
    return dataset.epoch_batches(MAX_SIZES, BatchLimits(MAX_TOKENS, None, MULTIPLE))[0]


def set_up_fairseq(pairs: Pairs, total: int, epoch: int) -> Batches:
    """Return the batches of an epoch by the steps of fairseq's `create_batch_sampler_func`."""
    shares = Schedule("temperature", TEMPERATURE).probabilities_at(1, [len(pair) for pair in pairs])
    named = OrderedDict((f"main:en-{number}", pair) for number, pair in enumerate(pairs))
    sizes = {"virtual_size": total, "virtual_epoch_size": None}
    dataset = SampledMultiEpochDataset(named, shares, seed=1, epoch=epoch, **sizes, shared_collater=True)
    with data_utils.numpy_seed(1):
        indices = dataset.ordered_indices()
    indices, _ = dataset.filter_indices_by_size(indices, MAX_SIZES)
    return dataset.batch_by_size(indices, MAX_TOKENS, None, MULTIPLE)


SYSTEMS: dict[str, Callable[[Pairs, int, int], Batches]] = {"ours": set_up_ours, "fairseq": set_up_fairseq}


def resident(which: str) -> float:
    """Return the MB that this process holds (`VmRSS`), or held at most (`VmHWM`)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    lines = [line for line in status.splitlines() if line.startswith(which)]
    return int(lines[0].split()[1]) * 1024 / MEGA


def peak_memory(name: str, total: int) -> float:
    """Return the peak MB of one set-up above what this process held before."""
    logging.disable(logging.WARNING)
    SYSTEMS[name](make_pairs(1000), 1000, 1)  # What is imported late is no memory of an epoch.
    pairs = make_pairs(total)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # Forget the peak so far.
    before = resident("VmRSS")
    SYSTEMS[name](pairs, total, 1)
    return resident("VmHWM") - before


def compare(report: Report, total: int, repetitions: int) -> None:
    """Compare time and memory of both systems on `total` sentence pairs."""
    pairs = make_pairs(total)
    numbers = {name: count(1) for name in SYSTEMS}  # epochs of each system

    def set_up(name: str) -> Batches:
        return SYSTEMS[name](pairs, total, next(numbers[name]))

    works = {name: partial(set_up, name) for name in SYSTEMS}
    seconds = interleaved(works, repetitions, warmups=1)
    memory = {}
    for name in SYSTEMS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
            memory[name] = fresh.submit(peak_memory, name, total).result()
    rows = [[name, median(seconds[name]), memory[name]] for name in SYSTEMS]
    title = f"{total / MEGA:g}M pairs"
    note = "Memory: peak above what the process held before, one fresh process each."
    report.table(title, ["system", "seconds (median)", "peak MB"], rows, note)
    report.raw(f"seconds, {title}", seconds)
    time_floor, memory_floor = FLOORS[total]
    report.ratio(f"{title}: time, ours / fairseq", seconds["ours"], seconds["fairseq"], Floor(time_floor))
    report.figure(f"{title}: memory, ours / fairseq", memory["ours"] / memory["fairseq"], Floor(memory_floor))


@benchmark("epoch", "Set-up of one sampling epoch, 50 language pairs", "1M pairs alone.", repetitions=5)
def main(report: Report, small: bool, repetitions: int) -> None:
    """Measure the set-up of one sampling epoch of 50 language pairs, ours and fairseq's."""
    logging.disable(logging.WARNING)
    report.text(
        f"Temperature {TEMPERATURE}, batches of {MAX_TOKENS} tokens in multiples of {MULTIPLE}, sentences of up to "
        f"{MAX_SIZES[0]} tokens; {torch.get_num_threads()} threads for ours, fairseq has one."
    )
    for total in (1_000_000,) if small else (1_000_000, 10_000_000):
        compare(report, total, repetitions)


if __name__ == "__main__":
    main()
