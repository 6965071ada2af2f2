"""Comparison of systems over seeds: means, spread between seeds, and differences."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, NamedTuple

from fairseq_mtmoe.analysis.rows import ALL
from fairseq_mtmoe.analysis.score_files import CA_MTL, MAJORITY, TITLES, Scores
from fairseq_mtmoe.analysis.score_tables import (
    CA_MTL_NOTE,
    MAJORITY_NOTE,
    PublishedRow,
    counted_metrics,
    published_row,
)  # fmt: skip
from fairseq_mtmoe.analysis.tables import Table, as_json, bullets, document, with_error
from fairseq_mtmoe.errors import UserError

NOTE = "±: standard error of the mean over seeds."
PAIRED = "Differences pair runs with the same seed, where seeds are named; ± is the standard error of their mean."


class Spread(NamedTuple):
    """A mean over runs, their standard deviation (n - 1), and the standard error.

    The last two are NaN for a single run.
    """

    mean: float
    deviation: float
    standard_error: float

    def __str__(self) -> str:
        return with_error(self.mean, self.standard_error)


@dataclass(frozen=True)
class System:
    """A system's runs, which differ in their seeds, and the groups to average over."""

    name: str
    runs: tuple[Scores, ...]
    averages: tuple[str, ...]

    def figures(self, run: Scores) -> dict[str, float]:
        """Return a run's scores by task or pair, and its averages by group."""
        means = {row.task: row for row in run.averages if row.metric in ("score", "BLEU")}
        rows = {**run.own, **{name: means[name] for name in self.averages}}
        return {name: row.figure for name, row in rows.items()}

    def spreads(self) -> dict[str, Spread]:
        """Return the spread of each task and each average over the runs."""
        of_runs = [self.figures(run) for run in self.runs]
        return {name: spread([one[name] for one in of_runs]) for name in of_runs[0]}

    def difference(self, first: System) -> tuple[list[int], dict[str, Spread]]:
        """Return the seeds that pair runs, and this system's differences from the first.

        Without common seeds, the spread is that of a difference of independent figures.
        """
        own, their = ({run.seed: one.figures(run) for run in one.runs if run.seed is not None} for one in (first, self))
        seeds = [seed for seed in own if seed in their]
        before, after = first.spreads(), self.spreads()
        if seeds:
            return seeds, {name: spread([their[s][name] - own[s][name] for s in seeds]) for name in before}
        both = {name: (was, after[name]) for name, was in before.items()}
        return [], {name: Spread(b.mean - a.mean, *map(math.hypot, a[1:], b[1:])) for name, (a, b) in both.items()}


def spread(values: Sequence[float]) -> Spread:
    """Return the spread of one figure over the runs."""
    deviation = stdev(values) if len(values) > 1 else math.nan
    return Spread(fmean(values), deviation, deviation / math.sqrt(len(values)))


def systems_of(named: Mapping[str, Iterable[Scores]]) -> list[System]:
    """Return systems of comparable runs; runs with one seed and different tasks join.

    Raises `UserError` if runs cannot be compared.
    """
    every = {name: [*of] for name, of in named.items()}
    _expect_different_folders(every)
    runs = {name: _completed(name, of) for name, of in every.items()}
    first = next(iter(runs.values()))[0]
    for name, run in ((name, run) for name, of in runs.items() for run in of):
        if wrong := _what_differs(run, first):
            raise UserError(
                f"Runs must have scores of the same data to be compared, but {run.folders[0]} ({name}) has {wrong} "
                f"{first.folders[0]}."
            )
    # CA-MTL's average is left out where runs have not the same metrics, as older files of scores.
    counted = {tuple(counted_metrics(run, first.own)) for of in runs.values() for run in of}
    averages = [name for name in first.groups if first.pairs or name in TITLES]
    averages += [ALL + CA_MTL] if len(counted) == 1 and any(row.task == ALL + CA_MTL for row in first.averages) else []
    return [System(name, of, tuple(averages)) for name, of in runs.items()]


def _expect_different_folders(named: Mapping[str, Sequence[Scores]]) -> None:
    seen: dict[str, str] = {}
    for name, folder in ((name, folder) for name, of in named.items() for run in of for folder in run.folders):
        path = os.path.realpath(folder)
        if path in seen:
            raise UserError(
                f"The runs of `{name}` must differ from all other runs, but {folder} is given twice, for {seen[path]} "
                f"and for {name}."
            )
        seen[path] = name


def _completed(name: str, runs: Iterable[Scores]) -> tuple[Scores, ...]:
    found: list[Scores] = []
    for run in runs:
        mates = [other for other in found if other.seed == run.seed]
        apart = [other for other in mates if not set(other.own) & set(run.own)]
        if apart:
            found[found.index(apart[0])] = apart[0].joined(run)
        elif mates and run.seed is not None:
            task = next(task for task in run.own if task in mates[0].own)
            raise UserError(
                f"The runs of `{name}` must differ in their seeds or in their tasks, but {mates[0].folders[0]} and "
                f"{run.folders[0]} both have {task} with seed {run.seed}."
            )
        else:
            found.append(run)
    return tuple(sorted(found, key=lambda run: -1 if run.seed is None else run.seed))


def _what_differs(run: Scores, first: Scores) -> str:
    if run.subset != first.subset:
        return f"those of {run.subset}, and not of {first.subset} as"
    if set(run.own) != set(first.own):
        missing = [f"no {task}" for task in first.own if task not in run.own]
        return " and ".join([*missing, *(task for task in run.own if task not in first.own)]) + ", other tasks than"
    for task, of_first in first.data.items():
        for name, value in of_first.items():
            if run.data[task].get(name) != value:
                return f"another {name} of {task} than"
    for name in {**first.groups, **run.groups}:
        is_asked = name in TITLES or bool(first.pairs)  # runs of single tasks do not know of other groups
        if is_asked and set(first.groups.get(name, ())) != set(run.groups.get(name, ())):
            return f"other tasks in {name} than"
    return ""


def mean_table(systems: Sequence[System]) -> Table:
    """Return a row per system, one for the majority class, and published systems."""
    first = systems[0].runs[0]
    known, averages, rows = first.majority, systems[0].averages, []
    for system in systems:
        spreads, seeds = system.spreads(), _seeds(run.seed for run in system.runs)
        rows.append([system.name, seeds, *(str(spreads[name]) for name in (*first.own, *averages))])
    cells = [f"{known[task]:.2f}" if task in known else "" for task in first.own]
    majority = [MAJORITY, "", *cells, *("" for _ in averages)]
    papers = [
        [paper.title, "", *(paper.mean_of([(task, "")]) for task in first.own),
         *(paper.mean_of((task, "") for task in first.groups[name]) if name in first.groups else
           paper.mean_of(counted_metrics(first, first.own)) for name in averages)]
        for paper in published(systems)
    ]  # fmt: skip
    columns = ["system", "seeds", *_columns(systems[0])]
    return Table(columns, rows, [*([majority] if known else []), *papers], texts=2, bold=False)


def difference_table(systems: Sequence[System]) -> Table | None:
    """Return a row per system but the first; None if there is one system."""
    rows = []
    for system in systems[1:]:
        seeds, found = system.difference(systems[0])
        signed = [("+" if one.mean >= 0 else "") + str(one) for one in found.values()]
        rows.append([f"{system.name} − {systems[0].name}", _seeds(seeds) if seeds else "not paired", *signed])
    return Table(["difference", "seeds", *_columns(systems[0])], rows, texts=2) if rows else None


def _columns(system: System) -> list[str]:
    run = system.runs[0]
    return [*map(run.title, run.own), *(name[:1].upper() + name[1:] for name in system.averages)]


def _seeds(seeds: Iterable[int | None]) -> str:
    return ", ".join("?" if seed is None else str(seed) for seed in seeds)


def published(systems: Sequence[System]) -> list[PublishedRow]:
    """Return the published rows of these systems."""
    rows = [published_row(system.runs[0]) for system in systems]
    return list({row.title: row for row in rows if row is not None}.values())


def notes(systems: Sequence[System]) -> list[str]:
    """Return the notes below the tables."""
    found = [NOTE, *([PAIRED] if len(systems) > 1 else [])]
    found += [MAJORITY_NOTE] if systems[0].runs[0].majority else []
    found += [CA_MTL_NOTE] if ALL + CA_MTL in systems[0].averages else []
    found += [f"{name}, {sentence}" for name, run in _named(systems) if run.tasks for sentence in run.remarks]
    for system in systems:
        known = [run.settings.get("updates") for run in system.runs if len(run.folders) == 1]
        updates = sorted({int(number) for number in known if number is not None})
        if len(updates) > 1:
            numbers = ", ".join(map(str, updates))
            found.append(f"The runs of {system.name} were trained for different numbers of updates: {numbers}.")
    return [*found, *dict.fromkeys(row.note for row in published(systems))]


def _named(systems: Sequence[System]) -> list[tuple[str, Scores]]:
    """Return all runs, named by their systems and seeds."""
    return [(f"{system.name}, seed {'unknown' if run.seed is None else run.seed}", run)
            for system in systems for run in system.runs]  # fmt: skip


def to_markdown(systems: Sequence[System], made_by: Mapping[str, object]) -> str:
    """Return the tables and the settings in Markdown."""
    tables = [table.in_markdown() for table in (mean_table(systems), difference_table(systems)) if table is not None]
    runs = bullets({name: ", ".join(run.checkpoints) for name, run in _named(systems)})
    made = bullets({"subset": systems[0].runs[0].subset, **made_by})
    return document([*tables, " ".join(notes(systems))], [*runs, *made])


def to_json(systems: Sequence[System], made_by: Mapping[str, object]) -> str:
    """Return settings, systems, majority class, differences and papers in JSON."""
    first, of_first = systems[0], systems[0].runs[0]

    def split(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        of = {name: one._asdict() if isinstance(one, Spread) else one for name, one in found.items()}
        averages = {name: of[name] for name in first.averages}
        return {"scores": {task: of[task] for task in of_first.own}, "averages": averages}

    found, differences = {}, {}
    for system in systems:
        runs = [{"seed": run.seed, "folders": run.folders, "checkpoints": run.checkpoints, **split(system.figures(run))}
                for run in system.runs]  # fmt: skip
        found[system.name] = {"runs": runs, **split(system.spreads())}
    for system in systems[1:]:
        seeds, between = system.difference(first)
        differences[system.name] = {"paired_seeds": seeds, **split(between)}
    papers = [{"system": row.system, "encoder": row.encoder, "source": row.source, "scores": row.figures}
              for row in published(systems)]  # fmt: skip
    return as_json({
        "settings": {"subset": of_first.subset, "compared_with": first.name, **made_by}, "systems": found,
        "majority": of_first.majority, "differences": differences, "published": papers,
    })  # fmt: skip
