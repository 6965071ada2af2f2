"""A comparison of systems as tables, Markdown and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_mtmoe.analysis.comparison import Difference, RunScores, Spread, System, difference, spreads
from fairseq_mtmoe.analysis.published import PublishedRow, published_row
from fairseq_mtmoe.analysis.scores import ALL
from fairseq_mtmoe.analysis.tables import Table
from fairseq_mtmoe.analysis.task_scores import CA_MTL, CA_MTL_NOTE, MAJORITY, MAJORITY_NOTE

NOTE = "±: standard error of the mean over seeds."
PAIRED = "Differences are of runs with the same seed, where seeds are named; ± is the standard error of their mean."


def mean_table(systems: Sequence[System]) -> Table:
    """A row for each system, one for the majority class, and one for each that a paper reports."""
    first = systems[0].runs[0]
    rows = [[system.name, _seeds(system.seeds), *_cells(first, spreads(system))] for system in systems]
    papers = [[row.title, "", *_paper_cells(first, row)] for row in published(systems)]
    majority = [[MAJORITY, "", *_majority_cells(first)]] if first.majority else []
    return Table(["system", "seeds", *_columns(first)], rows, [*majority, *papers], texts=2, bold=False)


def difference_table(systems: Sequence[System]) -> Table | None:
    """A row for each system but the first; None of one system."""
    if len(systems) == 1:
        return None
    first = systems[0]
    rows = [
        [f"{system.name} − {first.name}", _seeds(found.seeds) if found.seeds else "not paired", *_signed(first, found)]
        for system in systems[1:]
        for found in [difference(first, system)]
    ]
    return Table(["difference", "seeds", *_columns(first.runs[0])], rows, texts=2)


def published(systems: Sequence[System]) -> list[PublishedRow]:
    """The papers' rows of these systems."""
    rows = [published_row(system.runs[0].settings, system.runs[0].scores) for system in systems]
    return list({row.title: row for row in rows if row is not None}.values())


def notes(systems: Sequence[System]) -> list[str]:
    """What stands below the tables."""
    papers = dict.fromkeys(row.note for row in published(systems))
    first = systems[0].runs[0]
    found = [NOTE, *([PAIRED] if len(systems) > 1 else [])]
    found += [MAJORITY_NOTE] if first.majority else []
    found += [CA_MTL_NOTE] if ALL + CA_MTL in first.averages else []
    found += [
        f"{system.name}, seed {'unknown' if run.seed is None else run.seed}, {sentence}"
        for system in systems
        for run in system.runs
        for sentence in run.constants
    ]
    return [*found, *map(_uneven, filter(_uneven, systems)), *papers]


def _uneven(system: System) -> str:
    """A sentence where a system's runs are of different lengths; empty where they are not, or nobody knows."""
    known = [run.settings.get("updates") for run in system.runs if len(run.folders) == 1]
    updates = sorted({int(number) for number in known if number is not None})
    if len(updates) < 2:
        return ""
    numbers = ", ".join(map(str, updates))
    return f"The runs of {system.name} were trained for different numbers of updates: {numbers}."


def to_markdown(systems: Sequence[System], made_by: Mapping[str, object]) -> str:
    """The tables, and what they are made of."""
    tables = [mean_table(systems), difference_table(systems)]
    parts = [table.in_markdown() for table in tables if table is not None]
    runs = [
        f"- {system.name}, seed {'unknown' if run.seed is None else run.seed}: {', '.join(run.checkpoints)}"
        for system in systems
        for run in system.runs
    ]
    made = [f"- {name}: {value}" for name, value in {"subset": systems[0].runs[0].subset, **made_by}.items()]
    return "\n\n".join([*parts, " ".join(notes(systems)), "\n".join([*runs, *made])]) + "\n"


def to_json(systems: Sequence[System], made_by: Mapping[str, object]) -> str:
    """Return the comparison in JSON: settings, systems with their runs, the majority class, differences, and papers."""
    first = systems[0]
    content = {
        "settings": {"subset": first.runs[0].subset, "compared_with": first.name, **made_by},
        "systems": {system.name: _system_fields(system) for system in systems},
        "majority": dict(first.runs[0].majority),
        "differences": {
            system.name: {"paired_seeds": found.seeds, **_split(first.runs[0], found.scores)}
            for system in systems[1:]
            for found in [difference(first, system)]
        },
        "published": [
            {"system": row.system, "encoder": row.encoder, "source": row.source, "scores": dict(row.figures)}
            for row in published(systems)
        ],
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _system_fields(system: System) -> dict[str, Any]:
    runs = [
        {"seed": run.seed, "folders": run.folders, "checkpoints": run.checkpoints, "scores": dict(run.scores),
         "averages": run.averages}
        for run in system.runs
    ]  # fmt: skip
    return {"runs": runs, **_split(system.runs[0], spreads(system))}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _split(run: RunScores, found: Mapping[str, Spread]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Scores by task, and averages by group."""
    fields = {
        name: {"mean": one.mean, "deviation": _known(one.deviation), "standard_error": _known(one.standard_error)}
        for name, one in found.items()
    }
    return {
        "scores": {task: fields[task] for task in run.scores},
        "averages": {name: fields[name] for name in run.averages},
    }


def _columns(run: RunScores) -> list[str]:
    return [*run.titles.values(), *(name[:1].upper() + name[1:] for name in run.averages)]


def _cells(run: RunScores, found: Mapping[str, Spread]) -> list[str]:
    return [str(found[name]) for name in (*run.titles, *run.averages)]


def _signed(first: System, found: Difference) -> list[str]:
    run = first.runs[0]
    return [
        ("+" if found.scores[name].mean >= 0 else "") + str(found.scores[name]) for name in (*run.titles, *run.averages)
    ]


def _paper_cells(run: RunScores, row: PublishedRow) -> list[str]:
    wanted = [[task] for task in run.titles] + [list(tasks) for tasks in run.groups.values()]
    own = {task: run.compared.get(task, {}).get("metric") for task in run.counted}
    counted = [(task, metric, metric == own[task]) for task, figures in run.counted.items() for metric, _ in figures]
    by_set = [row.mean_of_figures(counted)] if ALL + CA_MTL in run.averages else []
    return [*(row.mean_of(tasks) for tasks in wanted), *by_set]


def _majority_cells(run: RunScores) -> list[str]:
    return [f"{run.majority[task]:.2f}" if task in run.majority else "" for task in run.titles] + [""] * len(
        run.averages
    )


def _seeds(seeds: Sequence[int | None]) -> str:
    return ", ".join("?" if seed is None else str(seed) for seed in seeds)
