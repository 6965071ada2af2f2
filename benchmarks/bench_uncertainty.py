"""What choosing by uncertainty costs: the pass of all candidates, beside a training step of as many sentences.

    python benchmarks/bench_uncertainty.py --write

Candidates are drawn as `--sampling-method uncertainty` draws them, equally many of 8 tasks as long as GLUE's; STS-B's
pass under dropout. The training step is the forward and backward pass of all of them, and the update.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from bench_glue import FULL, SMALL, WARMUPS, Size
from fairseq.tasks import setup_task
from glue_systems import Sample, System, configuration, made_encoder, system_of
from glue_texts import lengths, serialized_tokenizer, write_benchmark
from measure import Report, report_name, report_options
from timing import Floor, Ratio, interleaved

from fairseq_mtmoe.data.mixtures.candidates import CANDIDATES
from fairseq_mtmoe.data.mixtures.training import TrainingMixture

SYSTEMS = ("mt_dense", "mt_tag", "ca_mtl")
FROZEN = "half frozen"  # of which a training step costs less, and a pass as much
MOST = 0.40  # of the training step
SHARE = 0.02  # of GLUE's training examples, of which the candidates are drawn
CHOICE, TRAINING, STEP = "choosing", "training on all candidates", "a step of uncertainty sampling"


def system(data: Path, encoder: Path, arch: str, frozen: str) -> System:
    """A model with a task that draws candidates; `frozen` is `--freeze-layers`."""
    config = configuration(data, encoder, arch, "--sampling-method", "uncertainty", "--freeze-layers", frozen)
    task = setup_task(config.task)
    torch.manual_seed(1)
    found = system_of(task, task.build_model(config.model), config)
    task.load_dataset("train")
    return found


def steps_of(mixture: TrainingMixture, size: int, count: int) -> list[Sample]:
    batches, _ = mixture.epoch_batches(None, None, size, 1)
    whole = [batch for batch in batches if len(batch) == size * len(mixture.datasets)]
    chosen = np.random.default_rng(1).choice(len(whole), count, replace=False)
    return [mixture.collater([mixture[int(index)] for index in whole[number]]) for number in chosen]


def works(found: System, samples: list[Sample]) -> dict[str, Callable[[], Any]]:
    task: Any = found.task
    turns = {name: iter(samples) for name in (CHOICE, TRAINING, STEP)}

    def train(name: str, batch: Callable[[Sample], Sample]) -> None:
        found.sample = batch(next(turns[name]))
        found()

    def choose() -> None:
        task.choose(next(turns[CHOICE]), found.model, found.criterion, 1)

    mixture, drawn = task.datasets["train"], {id(sample): sample[CANDIDATES] for sample in samples}
    everything = {key: mixture.chosen_batch(of.examples(range(len(of.items)))) for key, of in drawn.items()}
    return {
        CHOICE: choose,
        TRAINING: partial(train, TRAINING, lambda sample: everything[id(sample)]),
        STEP: partial(train, STEP, lambda sample: sample),
    }


def run(size: Size, batch: int, repetitions: int, folder: Path, report: Report) -> None:
    """Everything, in a folder for the data; a step trains on `batch` examples."""
    data, encoder = folder / "data", folder / "encoder.pt"
    write_benchmark(data, size.share)
    made_encoder(encoder, size.encoder, serialized_tokenizer())
    report.text(f"{len(lengths())} tasks, {batch} candidates of each, of which {batch} train.")
    rows = []
    for name in (*SYSTEMS, f"{SYSTEMS[-1]}, {FROZEN}"):
        arch, _, frozen = name.partition(", ")
        found = system(data, encoder, arch + size.arch, "half" if frozen else "0")
        samples = steps_of(found.task.datasets["train"], batch, WARMUPS + repetitions)
        times = interleaved(works(found, samples), repetitions, WARMUPS)
        report.raw(f"seconds, {name}", times)
        rows.append([name, *(statistics.median(seconds) for seconds in times.values())])
        ratio = Ratio.of(times[CHOICE], times[TRAINING])
        rows[-1].append(str(ratio))
        if not frozen:
            report.figure(f"{name}: {CHOICE} / {TRAINING}", ratio.median, Floor(MOST), (ratio.low, ratio.high))
    report.table("Seconds", ["system", CHOICE, TRAINING, STEP, "the first / the second (quartiles)"], rows)


@click.command(context_settings={"show_default": True})
@click.option("--repetitions", type=click.IntRange(5), default=9)
@report_options("Fewer candidates.")
def main(repetitions: int, small: bool, check: bool, write: bool) -> None:
    """Time the pass of the candidates of uncertainty sampling."""
    logging.disable(logging.WARNING)
    is_small = small or check
    size = Size(SHARE, longest=(SMALL if is_small else FULL).longest)
    with tempfile.TemporaryDirectory() as folder:
        report = Report(report_name("uncertainty", is_small), "Choosing by uncertainty")
        run(size, 8 if is_small else size.batch, repetitions, Path(folder), report)
        report.finish(write, check)


if __name__ == "__main__":
    main()
