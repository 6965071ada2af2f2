"""Comparison of systems over seeds: means, spread between seeds, and differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.tables import Table, bullets, document, with_error
from fairseq_mtmoe.report.run_log import as_json
from fairseq_mtmoe.report.score_files import MAJORITY, TITLES, Scores
from fairseq_mtmoe.report.score_tables import MAJORITY_NOTE

NOTE = "±: standard error of the mean over seeds."
PAIRED = (
    "Differences pair runs with the same seed, where seeds are named; ± is the standard error of "
    "their mean."
)


@dataclass(frozen=True)
class Spread:
    """A mean over runs, their standard deviation (n - 1), and the standard error.

    The last two are NaN for a single run.
    """

    mean: float
    deviation: float
    standard_error: float

    def __format__(self, form: str) -> str:
        return with_error(self.mean, self.standard_error, f"{form}.2f")


@dataclass(frozen=True)
class System:
    """A system's runs, one per seed; tasks or pairs, and groups, in order."""

    name: str
    runs: tuple[Scores, ...]
    tasks: tuple[str, ...]
    averages: tuple[str, ...]

    def figures(self, run: Scores) -> dict[str, float]:
        """Return a run's scores by task or pair, and its averages by group."""
        means = {row.task: row for row in run.averages if row.metric in ("score", "BLEU")}
        rows = run.main | means
        return {name: rows[name].figure for name in (*self.tasks, *self.averages)}

    def spreads(self) -> dict[str, Spread]:
        """Return the spread of each task and each average over the runs."""
        return spreads_of([*map(self.figures, self.runs)])

    def difference(self, first: System) -> tuple[list[int], dict[str, Spread]]:
        """Return the seeds that pair runs, and this system's differences from the first.

        Without common seeds, the spread is that of a difference of independent figures.
        """
        before = {run.seed: first.figures(run) for run in first.runs}
        seeds = []
        changes = []
        for run in self.runs:
            if run.seed is not None and run.seed in before:
                seeds.append(run.seed)
                figures = self.figures(run)
                for name, figure in before[run.seed].items():
                    figures[name] -= figure
                changes.append(figures)
        if seeds:
            return seeds, spreads_of(changes)
        differences = {}
        theirs = first.spreads()
        for name, mine in self.spreads().items():
            deviation = math.hypot(mine.deviation, theirs[name].deviation)
            error = math.hypot(mine.standard_error, theirs[name].standard_error)
            differences[name] = Spread(mine.mean - theirs[name].mean, deviation, error)
        return [], differences


def spreads_of(figures: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Return the spread of each figure over the runs."""
    spreads = {}
    for name in figures[0]:
        values = [run_figures[name] for run_figures in figures]
        deviation = stdev(values) if len(values) > 1 else math.nan
        spreads[name] = Spread(fmean(values), deviation, deviation / math.sqrt(len(values)))
    return spreads


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


def mean_table(systems: Sequence[System]) -> Table:
    """Return a row per system, and one for the majority class."""
    rows = []
    for system in systems:
        seeds = _listed(run.seed for run in system.runs)
        rows.append([system.name, seeds, *map(format, system.spreads().values())])
    majority = dict.fromkeys((*systems[0].tasks, *systems[0].averages), "")
    for task, figure in systems[0].runs[0].majority.items():
        majority[task] = f"{figure:.2f}"
    if any(majority.values()):
        rows.append([MAJORITY, "", *majority.values()])
    return Table(["system", "seeds", *_titles(systems[0])], rows, texts=2)


def difference_table(systems: Sequence[System]) -> Table | None:
    """Return a row per system but the first; None if there is one system."""
    first, *others = systems
    rows = []
    for system in others:
        seeds, differences = system.difference(first)
        paired = _listed(seeds) or "not paired"
        cells = map("{:+}".format, differences.values())
        rows.append([f"{system.name} − {first.name}", paired, *cells])
    return Table(["difference", "seeds", *_titles(first)], rows, texts=2) if rows else None


def _titles(system: System) -> list[str]:
    tasks = map(system.runs[0].title, system.tasks)
    return [*tasks, *map(str.capitalize, system.averages)]


def _listed(seeds: Iterable[int | None]) -> str:
    return ", ".join(map(str, seeds)).replace("None", "?")


def notes(systems: Sequence[System]) -> list[str]:
    """Return the notes below the tables."""
    lines = [NOTE]
    if len(systems) > 1:
        lines.append(PAIRED)
    if systems[0].runs[0].majority:
        lines.append(MAJORITY_NOTE)
    for name, run in _named_runs(systems):
        if run.tasks:
            for remark in run.remarks:
                lines.append(f"{name}, {remark}")
    for system in systems:
        updates = set()
        for run in system.runs:
            if len(run.folders) == 1 and run.settings.get("updates"):
                updates.add(run.settings["updates"])
        if len(updates) > 1:
            lengths = f"different numbers of updates: {', '.join(map(str, sorted(updates)))}"
            lines.append(f"The runs of {system.name} were trained for {lengths}.")
    return lines


def _named_runs(systems: Sequence[System]) -> Iterator[tuple[str, Scores]]:
    """Yield all runs, named by their systems and seeds."""
    for system in systems:
        for run in system.runs:
            yield f"{system.name}, seed {'unknown' if run.seed is None else run.seed}", run


def to_markdown(systems: Sequence[System], made_by: Mapping[str, object]) -> str:
    """Return the tables and the settings in Markdown."""
    parts = [mean_table(systems).in_markdown()]
    differences = difference_table(systems)
    if differences is not None:
        parts.append(differences.in_markdown())
    checkpoints = {name: ", ".join(run.checkpoints) for name, run in _named_runs(systems)}
    settings = {"subset": systems[0].runs[0].subset, **made_by}
    lines = [*bullets(checkpoints), *bullets(settings)]
    return document([*parts, " ".join(notes(systems))], lines)


def to_json(systems: Sequence[System], made_by: Mapping[str, object]) -> str:
    """Return settings, systems, majority class and differences in JSON."""
    first = systems[0]
    written = {}
    differences = {}
    for system in systems:
        runs = []
        for run in system.runs:
            about = {"seed": run.seed, "folders": run.folders, "checkpoints": run.checkpoints}
            runs.append({**about, **_split(system, system.figures(run))})
        written[system.name] = {"runs": runs, **_split(system, system.spreads())}
        if system is not first:
            seeds, spreads = system.difference(first)
            differences[system.name] = {"paired_seeds": seeds, **_split(system, spreads)}
    settings = {"subset": first.runs[0].subset, "compared_with": first.name}
    return as_json(
        {
            "settings": {**settings, **made_by},
            "systems": written,
            "majority": first.runs[0].majority,
            "differences": differences,
        }
    )


def _split(system: System, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    averages = dict(values)
    scores = {task: averages.pop(task) for task in system.tasks}
    return {"scores": scores, "averages": averages}
