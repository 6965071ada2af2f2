"""What prices of earlier training steps save the assignment of the next one: part of `bench_assignment.py`.

Scores are real ones of consecutive steps. The start is the running mean of the prices of the steps before, as gates
remember it, or the last step's; one that belongs to no scores like these must cost little. Steps are alike, or they
alternate: each of three kinds of steps likes other experts, as batches of other languages do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import click
import torch
from assignment_scores import gap, upper_bound
from measure import Report, interleaved
from real_scores import RealScores
from timing import Floor, Ratio
from torch import Tensor

from fairseq_mtmoe.moe import priced_assignment
from fairseq_mtmoe.moe.assignment.torch_form import torch_assignment

HISTORY, MEASURED = 12, 4  # steps
MEMORY = 0.95  # of the running mean
ALTERNATING = 3  # kinds of steps
COLUMNS = ("scores", "no start (ms)", "mean (ms)", "mean / none", "last / none", "useless / none", "GPU form, gap (%)")
NOTE = ("Real scores of consecutive steps at a low rate of learning; where they alternate, with what every third step "
        "adds to each expert: normal noise as large as the deviation of a token's scores. Starts: the running mean of "
        "the steps before, the last step's prices, and those of "
        "other experts. The GPU form takes the mean; its largest gap.")  # fmt: skip


@dataclass(frozen=True)
class Step:
    """A step's scores, (T, N), and what its assignment may begin with, (N,) each."""

    scores_TN: Tensor
    starts: dict[str, Tensor | None]

    def assign(self, name: str) -> None:
        priced_assignment(self.scores_TN, self.starts[name])


@dataclass
class Found:
    rows: list[list[object]] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=lambda: {"mean": [], "last": [], "useless": []})
    gaps: list[float] = field(default_factory=list)


def compare_starts(report: Report, tokens: Sequence[int], experts: Sequence[int], repetitions: int) -> None:
    found, alternating = Found(), Found()
    for num_experts in experts:
        trained = RealScores(num_experts, calm=True)
        for num_tokens in tokens:
            size = f"{num_tokens} × {num_experts}"
            scores = list(trained.scores(num_tokens, HISTORY + MEASURED))
            compare_size(report, f"real, {size}", steps_of(scores), repetitions, found)
            compare_size(report, f"alternating, {size}", steps_of(leaning(scores)), repetitions, alternating)
    report.table("From prices of earlier steps", COLUMNS, found.rows + alternating.rows, NOTE)
    report.figure("from the mean of earlier prices: time / no start, median", median(found.ratios["mean"]), Floor(0.7))
    report.figure("from the last prices: time / no start, median", median(found.ratios["last"]), Floor(0.7))
    report.figure("from useless prices: time / no start, largest", max(found.ratios["useless"]), Floor(1.2))
    report.figure("alternating: from the mean: time / no start, median", median(alternating.ratios["mean"]), Floor(1.2))
    for name, gaps in (
        ("GPU form from the mean", found.gaps),
        ("alternating: GPU form from the mean", alternating.gaps),
    ):
        report.figure(f"{name}: gap, largest", max(gaps), Floor(1e-3))


def leaning(scores: Iterable[Tensor]) -> Iterator[Tensor]:
    """The same, (T, N) each, but experts are liked differently from step to step."""
    generator = torch.Generator().manual_seed(1)
    leans: list[Tensor] = []
    for number, scores_TN in enumerate(scores):
        if number < ALTERNATING:
            leans.append(torch.randn(scores_TN.shape[1], generator=generator) * scores_TN.std(1).mean())
        yield scores_TN + leans[number % ALTERNATING]


def steps_of(scores: Iterable[Tensor]) -> list[Step]:
    steps: list[Step] = []
    sum_N, weight, last_N = torch.zeros(()), 0.0, torch.zeros(())
    for number, scores_TN in enumerate(scores):
        if number >= HISTORY:
            mean_N = sum_N / weight
            starts = {"none": None, "mean": mean_N, "last": last_N, "useless": mean_N.flip(0)}
            steps.append(Step(scores_TN, starts))
        last_N = priced_assignment(scores_TN).price_N
        sum_N, weight = MEMORY * sum_N + last_N, MEMORY * weight + 1
    return steps


def compare_size(report: Report, size: str, steps: list[Step], repetitions: int, found: Found) -> None:
    """One row. The ratio of a size is the median over its steps of the medians turn by turn."""
    seconds: dict[str, list[float]] = {}
    for step in steps:
        for name, own in interleaved({name: partial(step.assign, name) for name in step.starts}, repetitions).items():
            seconds.setdefault(name, []).extend(own)
    report.raw(f"starts: {size}", seconds)
    ratios = {name: Ratio.of(seconds[name], seconds["none"]) for name in found.ratios}
    for name, ratio in ratios.items():
        found.ratios[name].append(ratio.median)
    found.gaps.append(max(gpu_gap(step) for step in steps))
    times = [1000 * median(seconds[name]) for name in ("none", "mean")]
    found.rows.append([size, *times, *ratios.values(), 100 * found.gaps[-1]])
    click.echo(f"{size}, from the mean: {ratios['mean']} of the time without a start", err=True)


def gpu_gap(step: Step) -> float:
    optimum = upper_bound(step.scores_TN, priced_assignment(step.scores_TN).price_N)
    return gap(torch_assignment(step.scores_TN, None, step.starts["mean"]).expert_T, optimum, step.scores_TN)
