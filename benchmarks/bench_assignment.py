"""Balanced assignment against fairseq's libbase (time, gap to the optimum) and scipy.

    python benchmarks/bench_assignment.py --write

Scores are isotropic, skewed (all tokens prefer few experts) and real (a model's that trains meanwhile). The optimum is
bounded by our prices (duality), and ours is compared with scipy's where that ends within minutes. On a GPU `make
gpu-check` times it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import click
import torch
from assignment_cases import Case, Libbase, cases, experts_of, libbase_assignment, scipy_assignment
from assignment_scores import gap, random_scores, upper_bound
from assignment_starts import compare_starts
from measure import Report, interleaved, report_name, report_options
from timing import Floor, Ratio
from torch import Tensor

from fairseq_mtmoe.moe import priced_assignment
from fairseq_mtmoe.moe.assignment import kernels

TOKENS, EXPERTS = (1024, 4096, 8192, 65_536), (8, 16, 64, 128)
SMALL_TOKENS, SMALL_EXPERTS = (4096, 8192), (16, 64)
SCIPY_SIZES = {(4096, 16), (4096, 64), (4096, 128)}
LONG_SCIPY_SIZES = {(8192, 16)}  # isotropic scores only: others take minutes
BATCHES = 3  # score matrices of each kind and size
LIMIT = 60  # seconds for libbase
ROUNDING = 1e-9  # of a gap
BUILD_SIZES = ((4096, 16), (4096, 64))
BUILD_COLUMNS = ("size", "build", "ms", "time / the first")
COLUMNS = ("scores", "ours (ms)", "libbase (ms)", "time / libbase", "gap, ours (%)", "gap, libbase (%)")
EXACT_COLUMNS = ("scores", "ours (ms)", "scipy (ms)", "time / scipy", "gap to scipy")
NOTE = ("Medians and quartiles; the time ratio is taken turn by turn. The gap to the optimum is the largest of three "
        "score matrices, in percent of the sum over tokens of highest - lowest score.")  # fmt: skip


@click.command(context_settings={"show_default": True})
@click.option("--repetitions", type=click.IntRange(5), default=9)
@report_options("4096 and 8192 tokens, 16 and 64 experts.")
def main(repetitions: int, small: bool, check: bool, write: bool) -> None:
    """Time balanced assignments, and say how far from the optimum they are."""
    small = small or check
    torch.manual_seed(1)
    report = Report(report_name("assignment", small), "Balanced assignment")
    builds = ", ".join(kernels.BUILDS)
    report.text(
        f"Ours is the compiled kernel; this machine runs the builds for {builds}, and takes the first."
        if builds
        else "Ours is the form in torch: there is no compiled kernel here."
    )
    compare_builds(report, repetitions)
    sizes = (SMALL_TOKENS, SMALL_EXPERTS) if small else (TOKENS, EXPERTS)
    compare(report, sizes, repetitions, small)
    compare_starts(report, *sizes, repetitions)
    report.finish(write, check)


@dataclass
class Found:
    rows: list[list[object]] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    worse: int = 0  # score matrices on which libbase comes nearer to the optimum
    exact_rows: list[list[object]] = field(default_factory=list)
    exact_ratios: list[float] = field(default_factory=list)
    exact_gaps: list[float] = field(default_factory=list)


def compare(report: Report, sizes: tuple[tuple[int, ...], tuple[int, ...]], repetitions: int, small: bool) -> None:
    found, libbase = Found(), Libbase(LIMIT)
    for case in cases(*sizes, BATCHES):
        ends = all(libbase.ends(scores_TN) for scores_TN in case.scores)
        compare_with_libbase(report, case, repetitions, ends, found)
        if is_for_scipy(case, small):
            compare_with_scipy(report, case, found)
    libbase.close()
    found.rows.sort(key=lambda row: str(row[0]).split(",")[0])  # by kind
    report.table("Against libbase", COLUMNS, found.rows, NOTE)
    report.table("Against scipy", EXACT_COLUMNS, found.exact_rows)
    if not found.ratios:
        report.text("libbase ended on none of these scores: there is nothing to compare with.")
        return
    report.figure("time / libbase, median over all scores", median(found.ratios), Floor(0.1))
    report.figure("time / libbase, largest", max(found.ratios), Floor(0.25))
    report.figure("score matrices on which libbase's gap is smaller", found.worse, Floor(0))
    report.figure("time / scipy, largest", max(found.exact_ratios), Floor(0.05))
    report.figure("gap to scipy, largest", max(found.exact_gaps), Floor(1e-6))


def compare_builds(report: Report, repetitions: int) -> None:
    """The compiled kernel's builds for other instruction sets beside the one that is taken."""
    if len(kernels.BUILDS) < 2:
        return
    rows = []
    for num_tokens, num_experts in BUILD_SIZES:
        scores = [random_scores("isotropic", num_tokens, num_experts) for _ in range(BATCHES)]
        works = {name: Turns(scores, partial(assign_with, build)) for name, build in kernels.BUILDS.items()}
        seconds = interleaved(works, repetitions, prepare={name: work.prepare for name, work in works.items()})
        size = f"{num_tokens} × {num_experts}"
        report.raw(f"builds: {size}", seconds)
        best = next(iter(seconds.values()))
        rows += [[size, name, 1000 * median(own), Ratio.of(own, best)] for name, own in seconds.items()]
    report.table("Builds of the kernel", BUILD_COLUMNS, rows, "Isotropic scores; all builds find the same optimum.")


def assign_with(build: kernels.Assign, scores_TN: Tensor) -> Tensor:
    found = kernels.assign(scores_TN, build)
    assert found is not None
    return found.expert_T


def is_for_scipy(case: Case, small: bool) -> bool:
    """Whether scipy finds the optimum of these scores in seconds."""
    size = (case.num_tokens, case.num_experts)
    if case.kind == "isotropic":
        return size in SCIPY_SIZES | LONG_SCIPY_SIZES
    return size in SCIPY_SIZES and not small


def compare_with_libbase(report: Report, case: Case, repetitions: int, ends: bool, found: Found) -> None:
    ours = Turns(case.scores, assigned)
    works = {"ours": ours}
    if ends:
        works["libbase"] = Turns(case.scores, libbase_assignment())
    seconds = interleaved(works, repetitions, prepare={name: work.prepare for name, work in works.items()})
    report.raw(str(case), seconds)
    optima = [upper_bound(scores_TN, priced_assignment(scores_TN).price_N) for scores_TN in case.scores]
    gaps = list(map(gap, map(assigned, case.scores), optima, case.scores))
    row = [str(case), 1000 * median(seconds["ours"])]
    if not ends:
        found.rows.append([*row, f"over {LIMIT} s", "–", 100 * max(gaps), "–"])
        return
    answers = [experts_of(libbase_assignment()(scores_TN), case.num_experts) for scores_TN in case.scores]
    theirs = list(map(gap, answers, optima, case.scores))
    ratio = Ratio.of(seconds["ours"], seconds["libbase"])
    found.rows.append([*row, 1000 * median(seconds["libbase"]), ratio, 100 * max(gaps), 100 * max(theirs)])
    click.echo(f"{case}: {ratio} of libbase's time", err=True)
    found.ratios.append(ratio.median)
    found.worse += sum(own > their + ROUNDING for own, their in zip(gaps, theirs, strict=True))


def compare_with_scipy(report: Report, case: Case, found: Found) -> None:
    """One row: our assignment's time over scipy's, and its gap to scipy's optimum."""
    ours = Turns(case.scores, assigned)
    works = {"ours": ours, "scipy": Turns(case.scores, scipy_assignment)}
    prepare = {name: work.prepare for name, work in works.items()}
    seconds = interleaved(works, 5, 0, prepare=prepare)  # scipy takes seconds, and has nothing to warm up
    report.raw(f"scipy: {case}", seconds)
    answers = zip(ours.answers, works["scipy"].answers, case.scores, strict=True)
    # Either sign is a fault: nothing is above the optimum.
    largest = max(abs(gap(own_T, total(their_T, scores_TN), scores_TN)) for own_T, their_T, scores_TN in answers)
    ratio = Ratio.of(seconds["ours"], seconds["scipy"])
    row = [str(case), 1000 * median(seconds["ours"]), 1000 * median(seconds["scipy"]), ratio, largest]
    found.exact_rows.append(row)
    click.echo(f"{case}: {ratio} of scipy's time", err=True)
    found.exact_ratios.append(ratio.median)
    found.exact_gaps.append(largest)


def assigned(scores_TN: Tensor) -> Tensor:
    return priced_assignment(scores_TN).expert_T


def total(expert_T: Tensor, scores_TN: Tensor) -> float:
    return float(scores_TN.double().gather(1, expert_T.unsqueeze(1)).sum())


class Turns:
    """Assigns the next one of the score matrices with each call, and remembers the answer."""

    def __init__(self, scores: list[Tensor], assign: Callable[[Tensor], Tensor]) -> None:
        self.scores = scores
        self.assign = assign
        self.answers: list[Tensor] = [torch.empty(0)] * len(scores)
        self._turn = -1

    def prepare(self) -> None:
        self._turn = (self._turn + 1) % len(self.scores)

    def __call__(self) -> None:
        self.answers[self._turn] = self.assign(self.scores[self._turn])


if __name__ == "__main__":
    main()
