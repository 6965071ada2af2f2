"""Comparison of systems over seeds: means, spread between seeds, and differences."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.tables import Table, bullets, document, with_error
from fairseq_mtmoe.report.rows import ALL
from fairseq_mtmoe.report.run_log import as_json
from fairseq_mtmoe.report.score_files import MAJORITY, TITLES, Scores
from fairseq_mtmoe.report.score_tables import (
    MAJORITY_NOTE,
    digits_of,
    untranslated_note,
)

NOTE = "±: standard error of the mean over seeds."
PAIRED = (
    "Differences pair runs with the same seed, where seeds are named; ± is half of the 95% "
    "confidence interval over seeds, by Student's t."
)
SEARCH = ("beam", "lenpen", "max_len_a", "max_len_b")
"""Settings of an evaluation that its scores depend on."""


@dataclass(frozen=True)
class Spread:
    """A mean over runs, their standard deviation (n - 1), and the standard error.

    The last two are NaN for a single run.
    """

    mean: float
    deviation: float
    standard_error: float

    def __format__(self, form: str) -> str:
        return with_error(self.mean, self.standard_error, form)


@dataclass(frozen=True)
class Change:
    """A difference of two means over seeds, and its 95% confidence interval.

    The interval is NaN where a system has a single run.
    """

    mean: float
    interval: tuple[float, float]

    def __format__(self, form: str) -> str:
        low, high = self.interval
        return with_error(self.mean, (high - low) / 2, form)


@dataclass(frozen=True)
class System:
    """A system's runs, one per seed; tasks or pairs, and groups, in order."""

    name: str
    runs: tuple[Scores, ...]
    tasks: tuple[str, ...]
    averages: tuple[str, ...]

    def figures(self, run: Scores, metric: str) -> dict[str, float]:
        """Return a run's scores by task or pair, and its averages by group."""
        rows = run.main
        if run.pairs:
            rows = {row.task: row for row in run.rows if row.metric == metric}
        means = {row.task: row for row in run.averages if row.metric == metric}
        rows = rows | means
        return {name: rows[name].figure for name in (*self.tasks, *self.averages)}

    def spreads(self, metric: str) -> dict[str, Spread]:
        """Return the spread of each task and each average over the runs."""
        spreads = {}
        for name, values in self.columns(metric).items():
            deviation = stdev(values) if len(values) > 1 else math.nan
            spreads[name] = Spread(fmean(values), deviation, deviation / math.sqrt(len(values)))
        return spreads

    def difference(self, first: System, metric: str) -> tuple[list[int], dict[str, Change]]:
        """Return the seeds that pair runs, and this system's differences from the first.

        Without common seeds the interval is Welch's, of two independent means.
        """
        theirs = {run.seed for run in first.runs}
        seeds = [run.seed for run in self.runs if run.seed is not None and run.seed in theirs]
        left = self.columns(metric, seeds)
        right = first.columns(metric, seeds)
        changes = {}
        for name, mine in left.items():
            changes[name] = change_of(mine, right[name], paired=bool(seeds))
        return seeds, changes

    def columns(self, metric: str, seeds: Sequence[int] = ()) -> dict[str, list[float]]:
        """Return the scores of the runs with these seeds, or of all, by task and average."""
        runs = [run for run in self.runs if run.seed in seeds] or self.runs
        rows = [self.figures(run, metric) for run in runs]
        columns = {}
        for name in rows[0]:
            columns[name] = [row[name] for row in rows]
        return columns


def change_of(mine: Sequence[float], theirs: Sequence[float], *, paired: bool) -> Change:
    """Return the difference of two means, by the paired or by Welch's t test."""
    from scipy.stats import ttest_ind, ttest_rel

    with warnings.catch_warnings(action="ignore"):  # of one run, or of runs without any spread
        test = ttest_rel(mine, theirs) if paired else ttest_ind(mine, theirs, equal_var=False)
        return Change(fmean(mine) - fmean(theirs), test.confidence_interval(0.95))


def systems_of(runs_by_name: Mapping[str, Sequence[Scores]]) -> list[System]:
    """Return systems of comparable runs; runs with one seed and different tasks join.

    Raises `UserError` if runs cannot be compared.
    """
    joined = {name: _joined_by_seed(name, runs) for name, runs in runs_by_name.items()}
    first = next(iter(joined.values()))[0]
    for name, runs in joined.items():
        for run in runs:
            wrong = _what_differs(run, first)
            if wrong:
                which = f"{run.folders[0]} ({name}) has {wrong} {first.folders[0]}"
                raise UserError(
                    f"Runs must have scores of the same data to be compared, but {which}."
                )
    averages = tuple(name for name in first.groups if first.pairs or name in TITLES)
    return [System(name, runs, tuple(first.main), averages) for name, runs in joined.items()]


def _joined_by_seed(name: str, runs: Iterable[Scores]) -> tuple[Scores, ...]:
    """Return the runs in order of their seeds; runs of one seed complete each other."""
    joined: list[Scores] = []
    for run in runs:
        for index, other in enumerate(joined):
            if other.seed != run.seed:
                continue
            if not other.main.keys() & run.main.keys():
                joined[index] = other.joined(run)
                break
            if run.seed is not None:
                both = f"{other.folders[0]} and {run.folders[0]} have seed {run.seed}"
                raise UserError(
                    f"The runs of `{name}` must differ in their seeds or in their tasks, but "
                    f"{both} and common tasks."
                )
        else:
            joined.append(run)
    return tuple(sorted(joined, key=lambda run: -1 if run.seed is None else run.seed))


def _what_differs(run: Scores, first: Scores) -> str:
    """Return why runs cannot be compared, such as `another metric of rte than`, or ""."""
    if run.subset != first.subset:
        return f"those of {run.subset}, and not of {first.subset} as"
    if run.main.keys() != first.main.keys():
        return f"{', '.join(run.main)}, other tasks than"
    for task, properties in first.data.items():
        for name, value in properties.items():
            if run.data[task].get(name) != value:
                return f"another {name} of {task} than"
    for name in {**first.groups, **run.groups}:
        # Runs of single tasks do not know of other groups.
        is_asked = name in TITLES or bool(first.pairs)
        if is_asked and {*first.groups.get(name, ())} != {*run.groups.get(name, ())}:
            return f"other tasks in {name} than"
    return ""


def metrics_of(systems: Sequence[System]) -> list[str]:
    """Return the metrics that all runs share with their signatures; of tasks, `score`."""
    first, *others = _runs(systems)
    metrics = []
    for metric, signatures in _signatures(first).items():
        if all(_signatures(run).get(metric) == signatures for run in others):
            metrics.append(metric)
    return metrics


def _signatures(run: Scores) -> dict[str, list[str | None]]:
    """Return the pairs' signatures, none for tasks, by metric that all pairs have."""
    signatures = {}
    for row in run.averages:
        if row.task == ALL:
            scores = run.pairs.values()
            signatures[row.metric] = [score.signatures.get(row.metric) for score in scores]
    return signatures


def tables_of(systems: Sequence[System]) -> dict[str, Table]:
    """Return the tables of means and of differences by title, for each metric."""
    tables = {}
    for metric in metrics_of(systems):
        tables[f"{metric}: mean over seeds"] = mean_table(systems, metric)
        if len(systems) > 1:
            tables[f"{metric}: differences"] = difference_table(systems, metric)
    return tables


def mean_table(systems: Sequence[System], metric: str) -> Table:
    """Return a row per system, and one for the majority class."""
    rows = []
    for system in systems:
        seeds = _listed(run.seed for run in system.runs)
        cells = [f"{spread:.{digits_of(metric)}f}" for spread in system.spreads(metric).values()]
        rows.append([system.name, seeds, *cells])
    majority = dict.fromkeys((*systems[0].tasks, *systems[0].averages), "")
    for task, figure in systems[0].runs[0].majority.items():
        majority[task] = f"{figure:.2f}"
    if any(majority.values()):
        rows.append([MAJORITY, "", *majority.values()])
    return Table(["system", "seeds", *_titles(systems[0])], rows, texts=2)


def difference_table(systems: Sequence[System], metric: str) -> Table:
    """Return a row per system but the first."""
    first, *others = systems
    rows = []
    for system in others:
        seeds, differences = system.difference(first, metric)
        paired = _listed(seeds) or "not paired"
        cells = [f"{spread:+.{digits_of(metric)}f}" for spread in differences.values()]
        rows.append([f"{system.name} − {first.name}", paired, *cells])
    return Table(["difference", "seeds", *_titles(first)], rows, texts=2)


def _titles(system: System) -> list[str]:
    tasks = map(system.runs[0].title, system.tasks)
    return [*tasks, *map(str.capitalize, system.averages)]


def _listed(seeds: Iterable[int | None]) -> str:
    return ", ".join(map(str, seeds)).replace("None", "?")


def notes(systems: Sequence[System]) -> list[str]:
    """Return the notes below the tables."""
    first = systems[0]
    lines = [*untranslated_note(_runs(systems)), NOTE]
    if len(systems) > 1:
        lines.append(PAIRED)
    lines += signatures_of(systems)
    for metric in _signatures(first.runs[0]):
        if metric not in metrics_of(systems):
            lines.append(f"{metric} is left out: not all runs have it with the same signature.")
    if first.runs[0].majority:
        lines.append(MAJORITY_NOTE)
    for name, run in _named_runs(systems):
        if run.tasks:
            lines += [f"{name}, {remark}" for remark in run.remarks]
    for system in systems:
        updates = set()
        for run in system.runs:
            if len(run.folders) == 1 and run.settings.get("updates"):
                updates.add(run.settings["updates"])
        if len(updates) > 1:
            lengths = f"different numbers of updates: {', '.join(map(str, sorted(updates)))}"
            lines.append(f"The runs of {system.name} were trained for {lengths}.")
    return lines


def signatures_of(systems: Sequence[System]) -> list[str]:
    """Return the signature of each metric, or the metric of each task."""
    first = systems[0].runs[0]
    if first.tasks:
        return [f"{first.title(task)}: {row.metric}" for task, row in first.main.items()]
    metrics = metrics_of(systems)
    lines = []
    for signature, pairs in first.signatures.items():
        if signature.partition(" ")[0] in metrics:
            lines.append(f"{signature}{pairs}")
    return lines


def _runs(systems: Sequence[System]) -> list[Scores]:
    return [run for system in systems for run in system.runs]


def _named_runs(systems: Sequence[System]) -> Iterator[tuple[str, Scores]]:
    """Yield all runs, named by their systems and seeds."""
    for system in systems:
        for run in system.runs:
            yield f"{system.name}, seed {'unknown' if run.seed is None else run.seed}", run


def _settings(systems: Sequence[System], made_by: Mapping[str, object]) -> dict[str, object]:
    """Return the subset, common settings of the search, and what made the file."""
    runs = _runs(systems)
    settings: dict[str, object] = {"subset": runs[0].subset, "compared_with": systems[0].name}
    for name in SEARCH:
        values = {run.settings.get(name) for run in runs}
        if values != {None}:
            settings[name] = values.pop() if len(values) == 1 else "differs"
    return {**settings, **made_by}


def to_markdown(systems: Sequence[System], made_by: Mapping[str, object]) -> str:
    """Return the tables and the settings in Markdown."""
    parts = []
    for title, table in tables_of(systems).items():
        parts += [f"## {title}", table.in_markdown()]
    checkpoints = {name: ", ".join(run.checkpoints) for name, run in _named_runs(systems)}
    lines = bullets({**checkpoints, **_settings(systems, made_by)})
    return document([*parts, *notes(systems)], lines)


def to_json(systems: Sequence[System], made_by: Mapping[str, object]) -> str:
    """Return settings, systems, majority class and differences in JSON."""
    first = systems[0]
    metrics = metrics_of(systems)
    written = {}
    differences = {}
    for system in systems:
        runs = []
        for run in system.runs:
            about = {"seed": run.seed, "folders": run.folders, "checkpoints": run.checkpoints}
            scores = {metric: _split(system, system.figures(run, metric)) for metric in metrics}
            runs.append({**about, **scores})
        means = {metric: _split(system, system.spreads(metric)) for metric in metrics}
        written[system.name] = {"runs": runs, **means}
        if system is not first:
            changes: dict[str, object] = {}
            for metric in metrics:
                seeds, by_name = system.difference(first, metric)
                changes |= {"paired_seeds": seeds, metric: _split(system, by_name)}
            differences[system.name] = changes
    return as_json(
        {
            "settings": _settings(systems, made_by),
            "metrics": signatures_of(systems),
            "systems": written,
            "majority": first.runs[0].majority,
            "differences": differences,
        }
    )


def _split(system: System, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    averages = dict(values)
    scores = {task: averages.pop(task) for task in system.tasks}
    return {"scores": scores, "averages": averages}
