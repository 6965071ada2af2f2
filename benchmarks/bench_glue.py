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

import glue_systems
import numpy as np
from glue_systems import ADAPTED, ADAPTED_FROZEN, DENSE, FROZEN, PEER, SPARSE, Sample, System, check_equal
from glue_texts import lengths, serialized_tokenizer, write_benchmark
from measure import Report, benchmark
from timing import Floor, interleaved

from fairseq_mtmoe.multitask.mixtures.candidates import CANDIDATES
from fairseq_mtmoe.multitask.mixtures.dataset import BatchLimits
from fairseq_mtmoe.nlu.bert.config import MINILM, EncoderConfig

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
    """What is trained on what."""

    share: float  # of as many training examples as GLUE has
    encoder: EncoderConfig = MINILM
    arch: str = "_minilm"
    batch: int = 32  # examples in a batch of like lengths
    tasks: int = 6  # it has so many of the 8 at least: of one length there are hardly ever examples of all
    length: int = 128  # of the longest batches
    longest: int = 16  # examples in such a batch, which has no padding
    candidates: int = 32  # of each task, to choose from by uncertainty


FULL = Size(share=1.0)
SMALL = Size(share=0.2, longest=8, candidates=8)


def compare_steps(report: Report, found: dict[str, System], size: Size, repetitions: int) -> None:
    mixture = found[DENSE].task.datasets["train"]
    samples = list(islice(glue_systems.batches(mixture, size.batch, size.tasks), WARMUPS + repetitions))
    check_equal(found, samples[0])
    few = islice(glue_systems.batches(mixture, size.longest), WARMUPS + repetitions)
    longest = [glue_systems.full(sample, size.length, size.encoder.vocab_size) for sample in few]
    for kind, chosen in ((OWN, samples), (LONGEST, longest)):
        seconds = interleaved({name: Turns(system, chosen) for name, system in found.items()}, repetitions, WARMUPS)
        tokens = [sample["ntokens"] for sample in chosen[WARMUPS:]]
        report.speeds(f"A training step, {kind}", seconds, PEER, tokens, "tokens", described(chosen))
        for own, other, limit in RATIOS:
            report.ratio(f"step, {kind}: {own} / {other}", seconds[own], seconds[other], Floor(limit))


class Turns:
    """A system that takes a training step on the next sample at each call."""

    def __init__(self, system: System, samples: list[Sample]) -> None:
        self.system = system
        self.samples = iter(samples)

    def __call__(self) -> None:
        self.system.sample = next(self.samples)
        self.system()


def compare_choosing(report: Report, data: Path, encoder: Path, size: Size, repetitions: int) -> None:
    """Time the pass of the candidates beside a training step on as many examples."""
    for arch in CHOOSING:
        options = ("--sampling-method", "uncertainty", "--freeze-layers", "0")
        system = glue_systems.system_of(glue_systems.configuration(data, encoder, arch + size.arch, *options))
        system.task.load_dataset("train")
        mixture = system.task.datasets["train"]
        samples = candidates(mixture, size.candidates, WARMUPS + repetitions)
        drawn = [sample[CANDIDATES] for sample in samples]
        batches_of_all = [mixture.chosen_batch(batch.examples(range(len(batch.items)))) for batch in drawn]
        works = {CHOICE: partial(choose, system, iter(samples)), TRAINING: Turns(system, batches_of_all)}
        seconds = interleaved(works, repetitions, WARMUPS)
        examples = [len(batch.items) for batch in drawn[WARMUPS:]]
        note = f"{size.candidates} candidates of each of {len(lengths())} tasks."
        report.speeds(f"Choosing by uncertainty, {arch}", seconds, TRAINING, examples, "examples", note)
        what = f"{arch}: {CHOICE} / {TRAINING}"
        report.ratio(what, seconds[CHOICE], seconds[TRAINING], Floor(MOST_OF_TRAINING))


def candidates(mixture: Any, size: int, number: int) -> list[Sample]:
    """Return whole batches of `size` candidates of each task."""
    epoch, _ = mixture.epoch_batches(None, BatchLimits(None, size))
    whole = [batch for batch in epoch if len(batch) == size * len(mixture.datasets)]
    chosen = np.random.default_rng(1).choice(len(whole), number, replace=False)
    return [mixture.collater([mixture[int(index)] for index in whole[place]]) for place in chosen]


def choose(system: System, samples: Iterator[Sample]) -> None:
    system.task.choose(next(samples), system.model, system.criterion, 1)


def described(samples: list[dict[str, Any]]) -> str:
    shapes = [sample["net_input"]["src_tokens"].shape for sample in samples]
    mean = statistics.fmean(width for _, width in shapes)
    padded = 1 - sum(sample["ntokens"] for sample in samples) / sum(rows * width for rows, width in shapes)
    tasks = statistics.fmean(len(sample["target"]) for sample in samples)
    return (
        f"Batches of {shapes[0][0]} examples of {tasks:.1f} tasks, {mean:.0f} tokens long, on average; {padded:.1%} "
        "of it is padding."
    )


@benchmark("glue", "Multi-task understanding", "A part of the data, and shorter batches.")
def main(report: Report, small: bool, repetitions: int) -> None:
    """Time training steps of multi-task encoders."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        compare(report, SMALL if small else FULL, repetitions, Path(folder))


def compare(report: Report, size: Size, repetitions: int, folder: Path) -> None:
    data, few, encoder = folder / "data", folder / "few", folder / "encoder.pt"
    write_benchmark(data, size.share)
    glue_systems.made_encoder(encoder, size.encoder, serialized_tokenizer())
    found = glue_systems.systems(data, encoder, size.arch)
    report.text(
        f"{size.encoder.num_hidden_layers} blocks of {size.encoder.hidden_size}; {SPARSE} has 4 experts with task "
        f"gates in each of them. {len(lengths())} tasks."
    )
    found[DENSE].task.load_dataset("train")
    compare_steps(report, found, size, repetitions)
    write_benchmark(few, min(size.share, CHOOSING_SHARE))
    compare_choosing(report, few, encoder, size, repetitions)


if __name__ == "__main__":
    main()
