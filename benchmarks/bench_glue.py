"""Multi-task understanding: a training step of MT-TaG, CA-MTL and MT-Dense.

    python benchmarks/bench_glue.py --write

A step is the forward and backward pass and the update, with our criterion and optimizer, on batches of 32 examples of
like lengths, drawn uniformly from 8 tasks. Beside it: Hugging Face's `BertModel` in PyTorch with the same weights,
heads, loss, optimizer and batches. The data is made, as long and as much as GLUE's (`glue_texts.py`), and is read from
files in the official form.

The last table shows the cost of `--sampling-method uncertainty`: the pass of the candidates, equally many of each
task, beside a training step on all of them.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from fairseq.tasks import setup_task
from glue_systems import (
    ADAPTED,
    ADAPTED_FROZEN,
    DENSE,
    FROZEN,
    PEER,
    SPARSE,
    Sample,
    System,
    batches,
    check_equal,
    configuration,
    full,
    made_encoder,
    system_of,
    systems,
)
from glue_texts import lengths, serialized_tokenizer, write_benchmark
from measure import Report, report_name, report_options
from timing import Floor, Ratio, interleaved

from fairseq_mtmoe.backbones.bert.config import MINILM, EncoderConfig
from fairseq_mtmoe.data.mixtures.candidates import CANDIDATES

WARMUPS = 2
OWN, LONGEST = "GLUE's lengths", "128 tokens"
RATIOS = (  # of steps: a system, what it is compared with, the ratio's ceiling
    (SPARSE, DENSE, 1.10),
    (DENSE, PEER, 0.95),
    (FROZEN, DENSE, 0.80),
    (ADAPTED_FROZEN, ADAPTED, 0.80),
)

CHOICE, TRAINING = "choosing", "training on all candidates"
CHOOSING = (DENSE, SPARSE)  # the systems that choose by uncertainty
CHOOSING_SHARE = 0.02  # of GLUE's training examples, from which candidates are drawn
MOST_OF_TRAINING = 0.40  # ceiling of the time of choosing


@dataclass(frozen=True)
class Size:
    """What is trained on what.

    Attributes:
        share: of as many training examples as GLUE has.
        batch: examples in a batch of like lengths.
        tasks: it has so many of the 8 at least: of one length there are hardly ever examples of all.
        length: of the longest batches, which have `longest` examples.
    """

    share: float
    encoder: EncoderConfig = MINILM
    arch: str = "_minilm"
    batch: int = 32
    tasks: int = 6
    length: int = 128
    longest: int = 16  # examples in a batch without padding
    candidates: int = 32  # of each task, to choose from by uncertainty


FULL = Size(share=1.0)
SMALL = Size(share=0.2, longest=8, candidates=8)


def steps(report: Report, found: dict[str, System], size: Size, repetitions: int) -> None:
    mixture = found[DENSE].task.datasets["train"]
    samples = list(islice(batches(mixture, size.batch, size.tasks), WARMUPS + repetitions))
    check_equal(found, samples[0])
    few = islice(batches(mixture, size.longest), WARMUPS + repetitions)
    longest = [full(sample, size.length, size.encoder.vocab_size) for sample in few]
    for kind, chosen in ((OWN, samples), (LONGEST, longest)):
        times = interleaved({name: Turns(system, chosen) for name, system in found.items()}, repetitions, WARMUPS)
        report.raw(f"seconds, {kind}", times)
        tokens = [sample["ntokens"] for sample in chosen[WARMUPS:]]
        show_steps(report, kind, times, tokens, described(chosen))
        for own, other, limit in RATIOS:
            ratio = Ratio.of(times[own], times[other])
            report.figure(f"step, {kind}: {own} / {other}", ratio.median, Floor(limit), (ratio.low, ratio.high))


class Turns:
    def __init__(self, system: System, samples: list[dict[str, Any]]) -> None:
        self.system = system
        self.samples = iter(samples)

    def __call__(self) -> None:
        self.system.sample = next(self.samples)
        self.system()


def choosing(report: Report, data: Path, encoder: Path, size: Size, repetitions: int) -> None:
    """Time the pass of the candidates beside a training step on as many examples."""
    rows = []
    for arch in CHOOSING:
        config = configuration(
            data, encoder, arch + size.arch, "--sampling-method", "uncertainty", "--freeze-layers", "0"
        )
        task: Any = setup_task(config.task)
        torch.manual_seed(1)
        system = system_of(task, task.build_model(config.model), config)
        task.load_dataset("train")
        samples = candidates(task, size.candidates, WARMUPS + repetitions)
        mixture = task.datasets["train"]
        drawn = [sample[CANDIDATES] for sample in samples]
        batches_of_all = [mixture.chosen_batch(batch.examples(range(len(batch.items)))) for batch in drawn]
        works = {CHOICE: partial(choose, system, iter(samples)), TRAINING: Turns(system, batches_of_all)}
        times = interleaved(works, repetitions, WARMUPS)
        report.raw(f"seconds of choosing, {arch}", times)
        ratio = Ratio.of(times[CHOICE], times[TRAINING])
        rows.append([arch, *(statistics.median(seconds) for seconds in times.values()), str(ratio)])
        limit = Floor(MOST_OF_TRAINING)
        report.figure(f"{arch}: {CHOICE} / {TRAINING}", ratio.median, limit, (ratio.low, ratio.high))
    note = f"{size.candidates} candidates of each of {len(lengths())} tasks."
    columns = ["system", CHOICE, TRAINING, "the first / the second (quartiles)"]
    report.table("Seconds of choosing by uncertainty", columns, rows, note)


def candidates(task: Any, size: int, number: int) -> list[Sample]:
    """Return whole batches of `size` candidates of each task."""
    mixture = task.datasets["train"]
    epoch, _ = mixture.epoch_batches(None, None, size, 1)
    whole = [batch for batch in epoch if len(batch) == size * len(mixture.datasets)]
    chosen = np.random.default_rng(1).choice(len(whole), number, replace=False)
    return [mixture.collater([mixture[int(index)] for index in whole[place]]) for place in chosen]


def choose(system: System, samples: Iterator[Sample]) -> None:
    system.task.choose(next(samples), system.model, system.criterion, 1)


def show_steps(report: Report, kind: str, times: dict[str, list[float]], tokens: list[int], note: str) -> None:
    """Seconds and tokens per second of each system, and the ratio to the peer's."""
    rows = [
        [name, statistics.median(seconds), sum(tokens) / sum(seconds), str(Ratio.of(seconds, times[PEER]))]
        for name, seconds in times.items()
    ]
    report.table(f"A training step, {kind}", ["system", "s", "tokens/s", "time / the peer's (quartiles)"], rows, note)


def described(samples: list[dict[str, Any]]) -> str:
    shapes = [sample["net_input"]["src_tokens"].shape for sample in samples]
    mean = statistics.fmean(width for _, width in shapes)
    padded = 1 - sum(sample["ntokens"] for sample in samples) / sum(rows * width for rows, width in shapes)
    tasks = statistics.fmean(len(sample["target"]) for sample in samples)
    return (
        f"Batches of {shapes[0][0]} examples of {tasks:.1f} tasks, {mean:.0f} tokens long, on average; {padded:.1%} "
        "of it is padding."
    )


@click.command(context_settings={"show_default": True})
@click.option("--repetitions", type=click.IntRange(5), default=9)
@report_options("A part of the data, and shorter batches.")
def main(repetitions: int, small: bool, check: bool, write: bool) -> None:
    """Time training steps of multi-task encoders."""
    logging.disable(logging.WARNING)
    size = SMALL if small or check else FULL
    with tempfile.TemporaryDirectory() as folder:
        report = Report(report_name("glue", size is SMALL), "Multi-task understanding")
        run(size, repetitions, Path(folder), report)
        report.finish(write, check)


def run(size: Size, repetitions: int, folder: Path, report: Report) -> None:
    data, encoder = folder / "data", folder / "encoder.pt"
    write_benchmark(data, size.share)
    made_encoder(encoder, size.encoder, serialized_tokenizer())
    found = systems(data, encoder, ("--sampling-method", "uniform"), size.arch)
    report.text(
        f"{size.encoder.num_hidden_layers} blocks of {size.encoder.hidden_size}; {SPARSE} has 4 experts with task "
        f"gates in each of them. {len(lengths())} tasks."
    )
    found[DENSE].task.load_dataset("train")
    steps(report, found, size, repetitions)
    few = folder / "few"
    write_benchmark(few, min(size.share, CHOOSING_SHARE))
    choosing(report, few, encoder, size, repetitions)


if __name__ == "__main__":
    main()
