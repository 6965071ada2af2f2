"""Several systems, each of one run or more: what they reach in the mean, how far seeds lie apart, and who is ahead.

Scores are those of `fairseq-validate --task glue` or of `mtmoe evaluate`; what follows does not know which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from fairseq_mtmoe.analysis.scores import ALL
from fairseq_mtmoe.analysis.tables import with_error
from fairseq_mtmoe.analysis.task_scores import CA_MTL
from fairseq_mtmoe.errors import UserError


@dataclass(frozen=True)
class RunScores:
    """What one run reached, or several runs of the same seed with different tasks.

    Attributes:
        folders: with the scores.
        checkpoints: that were scored.
        seed: of the training; None if nobody knows.
        subset: of the data.
        scores: of each task (or language pair) by its name, from 0 to 100.
        titles: what the tasks are called.
        groups: the tasks of each group that has an average; of all tasks last.
        compared: what must be the same of each task where runs are compared: the metric, the data.
        settings: of the evaluation.
        majority: by task, what one label for every example scores; see `task_scores.SetScore`.
        counted: by task, the figures that CA-MTL's average counts, each with its metric; empty where nobody asks.
        constants: a sentence for each set of which the model predicted one label alone.
    """

    folders: tuple[str, ...]
    checkpoints: tuple[str, ...]
    seed: int | None
    subset: str
    scores: Mapping[str, float]
    titles: Mapping[str, str]
    groups: Mapping[str, Sequence[str]]
    compared: Mapping[str, Mapping[str, object]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    majority: Mapping[str, float] = field(default_factory=dict)
    counted: Mapping[str, Sequence[tuple[str, float]]] = field(default_factory=dict)
    constants: Sequence[str] = ()

    @property
    def averages(self) -> dict[str, float]:
        """The mean over each group's tasks, and CA-MTL's over all of them where it counts other figures."""
        means = {name: fmean(self.scores[task] for task in tasks) for name, tasks in self.groups.items()}
        counted = [figure for figures in self.counted.values() for _, figure in figures]
        if len(self.counted) > 1 and counted != list(self.scores.values()):
            means[ALL + CA_MTL] = fmean(counted)
        return means


@dataclass(frozen=True)
class System:
    """Runs that differ in their seeds."""

    name: str
    runs: tuple[RunScores, ...]

    @property
    def seeds(self) -> list[int | None]:
        """One of each run."""
        return [run.seed for run in self.runs]


@dataclass(frozen=True)
class Spread:
    """A mean over runs, with its standard error: NaN of a single run.

    Attributes:
        deviation: the runs' standard deviation (of n - 1), which the error is made of.
    """

    mean: float
    deviation: float
    standard_error: float

    def __str__(self) -> str:
        return with_error(self.mean, self.standard_error)


@dataclass(frozen=True)
class Difference:
    """By how much a system's scores are above the first system's.

    Attributes:
        seeds: by which runs are paired; empty where they are not, and the spread is that of a difference of
            independent figures.
        scores: of each task and each average.
    """

    seeds: list[int]
    scores: Mapping[str, Spread]


def spread(values: Sequence[float]) -> Spread:
    """Of one figure over the runs."""
    deviation = stdev(values) if len(values) > 1 else math.nan
    return Spread(fmean(values), deviation, deviation / math.sqrt(len(values)))


def figures(run: RunScores) -> dict[str, float]:
    """A run's scores and, by the names of their groups, its averages."""
    return {**run.scores, **run.averages}


def spreads(system: System) -> dict[str, Spread]:
    """Of each task and each average of a system."""
    of_runs = [figures(run) for run in system.runs]
    return {name: spread([one[name] for one in of_runs]) for name in of_runs[0]}


def difference(first: System, other: System) -> Difference:
    """Paired by the seeds that both have, if there are some; else of the means."""
    own = {run.seed: figures(run) for run in first.runs if run.seed is not None}
    their = {run.seed: figures(run) for run in other.runs if run.seed is not None}
    seeds = [seed for seed in own if seed in their]
    names = figures(first.runs[0])
    if seeds:
        return Difference(seeds, {name: spread([their[s][name] - own[s][name] for s in seeds]) for name in names})
    before, after = spreads(first), spreads(other)
    return Difference([], {name: _between(before[name], after[name]) for name in names})


def _between(before: Spread, after: Spread) -> Spread:
    error = math.hypot(before.standard_error, after.standard_error)
    return Spread(after.mean - before.mean, math.hypot(before.deviation, after.deviation), error)


def system_of(name: str, runs: Sequence[RunScores]) -> System:
    """A system of runs, of which those with the same seed and different tasks complete each other.

    Raises:
        UserError: two runs have the same seed and a task in common.
    """
    merged: list[RunScores] = []
    for run in runs:
        mates = [other for other in merged if other.seed == run.seed]
        apart = [other for other in mates if not set(other.scores) & set(run.scores)]
        if apart:
            merged[merged.index(apart[0])] = _completed(apart[0], run)
        elif mates and run.seed is not None:
            task = next(task for task in run.scores if task in mates[0].scores)
            raise UserError(
                f"The runs of `{name}` must differ in their seeds or in their tasks, but {mates[0].folders[0]} and "
                f"{run.folders[0]} both have {task} with seed {run.seed}."
            )
        else:
            merged.append(run)
    return System(name, tuple(sorted(merged, key=lambda run: -1 if run.seed is None else run.seed)))


def _completed(run: RunScores, other: RunScores) -> RunScores:
    names = sorted({**run.groups, **other.groups}, key=lambda name: name == ALL)  # it stays last
    groups = {name: [*run.groups.get(name, ()), *other.groups.get(name, ())] for name in names}
    return RunScores(
        (*run.folders, *other.folders), (*run.checkpoints, *other.checkpoints), run.seed, run.subset,
        {**run.scores, **other.scores}, {**run.titles, **other.titles}, groups, {**run.compared, **other.compared},
        run.settings, {**run.majority, **other.majority}, {**run.counted, **other.counted},
        (*run.constants, *other.constants),
    )  # fmt: skip


def check_comparable(systems: Sequence[System]) -> None:
    """See that all runs were scored on the same.

    Raises:
        UserError: one has another subset, other tasks, other data, or another metric than the first.
    """
    first = systems[0].runs[0]
    for system in systems:
        for run in system.runs:
            wrong = _what_differs(run, first)
            if wrong:
                raise UserError(
                    f"Runs must have scores of the same data to be compared, but {run.folders[0]} ({system.name}) has "
                    f"{wrong} {first.folders[0]}."
                )


def counted_alike(systems: Sequence[System]) -> list[System]:
    """Return the systems without CA-MTL's average where runs have not the same metrics, as older files of scores."""
    metrics = [
        {task: [metric for metric, _ in figures] for task, figures in run.counted.items()}
        for system in systems
        for run in system.runs
    ]
    if all(one == metrics[0] for one in metrics):
        return [*systems]
    return [System(one.name, tuple(replace(run, counted={}) for run in one.runs)) for one in systems]


def _what_differs(run: RunScores, first: RunScores) -> str:
    if run.subset != first.subset:
        return f"those of {run.subset}, and not of {first.subset} as"
    if set(run.scores) != set(first.scores):
        missing = [task for task in first.scores if task not in run.scores]
        more = [task for task in run.scores if task not in first.scores]
        return " and ".join([*(f"no {task}" for task in missing), *more]) + ", other tasks than"
    for task, of_first in first.compared.items():
        for name, value in of_first.items():
            if run.compared[task].get(name) != value:
                return f"another {name} of {task} than"
    for name in {**first.groups, **run.groups}:
        if set(first.groups.get(name, ())) != set(run.groups.get(name, ())):
            return f"other tasks in {name} than"
    return ""
