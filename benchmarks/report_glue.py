"""The tables of a study of runs on benchmarks' tasks, in Markdown beside the JSON of `compare_glue.py`,
`compare_ca_mtl.py` or `compare_pemt.py`; of whatever runs are there.

    python benchmarks/report_glue.py benchmarks/results/training_ca_mtl.json

Scores are in percent. ± is a standard deviation over seeds in the tables of scores, and a standard error of the mean in
those of differences, which are paired by seed.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import click
from scipy.stats import t as student

from fairseq_mtmoe.analysis.comparison import RunScores, Spread, System, difference, spread, spreads, system_of
from fairseq_mtmoe.analysis.scores import ALL
from fairseq_mtmoe.analysis.tables import with_error
from fairseq_mtmoe.analysis.task_scores import TITLES, TaskScore, error_of_mean, from_content, groups
from fairseq_mtmoe.io.files import write_text
from fairseq_mtmoe.io.markdown import markdown_table

Record = Mapping[str, Any]  # of a run, as the scripts write it
LEVEL = 0.95


@dataclass(frozen=True)
class Kind:
    """Runs that stand in one table, such as the mixtures.

    Attributes:
        systems: each of several seeds; the first one is what others are compared with.
        errors: of each column, the standard error of one run from the number of examples.
        records: of the runs, by system.
        incomplete: names of runs that lack others to stand in the table.
    """

    systems: list[System]
    errors: dict[str, float]
    records: dict[str, list[Record]]
    incomplete: list[str]

    def of(self, system: System) -> list[Record]:
        """The records of the system's runs in the table."""
        return [record for record in self.records[system.name] if record["seed"] in system.seeds]

    @property
    def columns(self) -> dict[str, str]:
        """Titles of the tasks and averages, by their names in `figures`."""
        run = self.systems[0].runs[0]
        return {**run.titles, **{name: TITLES.get(name, name) for name in run.groups}}


def task_scores_of(record: Record) -> list[TaskScore]:
    """What a run reached."""
    return from_content({"settings": {}, "tasks": record["scores"]})[1]


def of_mixture(record: Record) -> RunScores:
    """A run on all tasks, or a part of several that complete each other."""
    scores = task_scores_of(record)
    return _run(
        record, {one.task: one.score for one in scores}, {one.task: one.title for one in scores}, groups(scores)
    )


def of_new_task(record: Record) -> RunScores:
    """A run on a new task with a share of its examples: each share is a column, and there is no average."""
    (one,) = task_scores_of(record)
    name = f"{one.title}, {100 * record['share']:g}%"
    return _run(record, {name: one.score}, {name: name}, {})


def _run(
    record: Record, scores: Mapping[str, float], titles: Mapping[str, str], of_groups: Mapping[str, Sequence[str]]
) -> RunScores:
    return RunScores((), (), record["seed"], "", scores, titles, of_groups, {})


def mixtures(records: Iterable[Record], stage: int = 1) -> Kind | None:
    """The runs of a stage; the first system is the first that was run."""
    of_stage = [record for record in records if record["stage"] == stage]
    return _kind(_grouped(of_stage), of_mixture) if of_stage else None


def new_tasks(records: Iterable[Record]) -> Kind | None:
    """The runs of stage 2; the first system is the last that was run, which begins with the least."""
    of_stage = [record for record in records if record["stage"] == 2]
    by_system = dict(reversed(_grouped(of_stage).items()))
    return _kind(by_system, of_new_task) if of_stage else None


def _grouped(records: Iterable[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["system"], []).append(record)
    return found


def _kind(by_system: Mapping[str, list[Record]], read: Any) -> Kind | None:
    """Systems with the runs that have a score in every column."""
    systems = [system_of(name, [read(record) for record in records]) for name, records in by_system.items()]
    widest = max((run for system in systems for run in system.runs), key=lambda run: len(run.scores))
    whole, incomplete = [], []
    for system in systems:
        runs = tuple(_ordered(run, widest) for run in system.runs if set(run.scores) == set(widest.scores))
        incomplete += [f"{system.name}-{run.seed}" for run in system.runs if len(run.scores) < len(widest.scores)]
        if runs:
            whole.append(System(system.name, runs))
    records = [record for records in by_system.values() for record in records]
    return Kind(whole, _errors(records, read, widest), dict(by_system), incomplete)


def _ordered(run: RunScores, like: RunScores) -> RunScores:
    scores = {name: run.scores[name] for name in like.scores}
    return RunScores((), (), run.seed, "", scores, like.titles, like.groups, {})


def _errors(records: Sequence[Record], read: Any, widest: RunScores) -> dict[str, float]:
    """Of a column, the root of the mean square of the runs' standard errors."""
    found: dict[str, list[float]] = {}
    for record in records:
        for name, one in zip(read(record).scores, task_scores_of(record), strict=True):
            found.setdefault(name, []).append(one.standard_error)
    errors = {name: math.sqrt(fmean(error**2 for error in found[name])) for name in widest.scores}
    return {
        **errors,
        **{name: error_of_mean([errors[task] for task in tasks]) for name, tasks in widest.groups.items()},
    }


# ---- tables ----


def score_table(kind: Kind, paper: Mapping[str, Mapping[str, float]]) -> str:
    """A row for each system, and one for the standard error of a single run; with what a paper reports of the mean."""
    extra = _extras(kind)
    reported = {name for figures in paper.values() for name in figures}
    shown = {name: title for name, title in _PAPER.items() if name in reported and name in (ALL, *extra)}
    head = ["system", "seeds", *kind.columns.values(), *extra, *(f"paper: {title}" for title in shown.values())]
    rows = []
    for system in kind.systems:
        found = spreads(system)
        cells = [str(found[name]) for name in kind.columns]
        of_paper = paper.get(system.name, {})
        cells += [
            *(extra[what](kind, system) for what in extra),
            *(f"{of_paper[n]:g}" if n in of_paper else "" for n in shown),
        ]
        rows.append([system.name, _seeds(system.seeds), *cells])
    errors = [f"{kind.errors[name]:.2f}" for name in kind.columns]
    rows.append(["*standard error of one run*", "", *errors, *[""] * (len(extra) + len(shown))])
    return markdown_table(head, rows, 2)


_PAPER = {ALL: "mean", "spread": "spread", "% of the data": "% of the data"}


def _extras(kind: Kind) -> dict[str, Any]:
    """Further columns, and how to come by their cells."""
    extra: dict[str, Any] = {}
    if ALL in kind.columns:  # runs on several tasks
        extra["spread"] = _spread_across_tasks
        if any("share_of_data" in record for records in kind.records.values() for record in records):
            extra["% of the data"] = _data
    return {**extra, "minutes": _minutes}


def _spread_across_tasks(kind: Kind, system: System) -> str:
    return str(spread([pstdev(run.scores.values()) for run in system.runs]))


def _data(kind: Kind, system: System) -> str:
    """In a single-task run the task is all the data; such runs are left out."""
    shares = [100 * record["share_of_data"] for record in kind.of(system) if len(record["tasks"]) > 1]
    return f"{fmean(shares):.1f}" if shares else ""


def _minutes(kind: Kind, system: System) -> str:
    return f"{sum(record['seconds'] for record in kind.of(system)) / 60 / len(system.runs):.1f}"


def difference_table(kind: Kind, stepwise: bool = False) -> str:
    """Each other system beside the first, ± the standard error of the mean.

    Args:
        kind: of the systems.
        stepwise: whether there is a last column, of all tasks beside the row above.
    """
    first, *others = kind.systems
    head = ["difference", "seeds", *kind.columns.values(), *([f"{TITLES[ALL]}, to the row above"] if stepwise else [])]
    rows = []
    for before, system in zip(kind.systems, others, strict=False):
        found = difference(first, system)
        cells = [_difference(found.scores[name], len(found.seeds)) for name in kind.columns]
        if stepwise:
            step = difference(before, system)
            cells.append(_difference(step.scores[ALL], len(step.seeds)))
        rows.append([f"{system.name} − {first.name}", _seeds(found.seeds) if found.seeds else "not paired", *cells])
    return markdown_table(head, rows, 2)


def _difference(found: Spread, seeds: int) -> str:
    """Such as `+1.20 ±0.35 *`, the star where chance would do it in one of twenty."""
    sign = "+" if found.mean >= 0 else ""
    if seeds < 2:
        return f"{sign}{found.mean:.2f}"
    star = " *" if beyond_chance(found, seeds) else ""
    return f"{sign}{with_error(found.mean, found.deviation / math.sqrt(seeds))}{star}"


def beyond_chance(found: Spread, seeds: int) -> bool:
    """Whether chance alone would give such a mean of differences in less than one of twenty (Student's t)."""
    error = found.deviation / math.sqrt(seeds)
    return bool(seeds > 1 and abs(found.mean) > student.ppf((1 + LEVEL) / 2, seeds - 1) * error)


def share_table(kind: Kind) -> str:
    """Each task's share of what a system was trained on."""
    systems = [
        system for system in kind.systems if all(len(record.get("task_shares", ())) > 1 for record in kind.of(system))
    ]
    if not systems:
        return ""
    tasks = list(kind.systems[0].runs[0].scores)
    rows = []
    for system in systems:
        found = [record["task_shares"] for record in kind.of(system)]
        cells = [str(spread([100 * shares.get(task, 0) for shares in found])) for task in tasks]
        rows.append([system.name, *cells])
    return markdown_table(["system", *(kind.columns[task] for task in tasks)], rows)


def weight_table(kind: Kind) -> str:
    """How much each task of a system borrows from each source: the mean over layers."""
    borrowing = [
        (system.name, record) for system in kind.systems for record in kind.of(system) if record.get("weights")
    ]
    if not borrowing:
        return ""
    sources = list(dict.fromkeys(source for _, record in borrowing for source in record["weights"]))
    found: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for system, record in borrowing:
        (score,) = task_scores_of(record)
        found.setdefault((system, score.title), []).append(record["weights"])
    rows = [
        [*names, *(str(spread([100 * one[source] for one in weights])) if all(source in one for one in weights) else ""
                   for source in sources)]
        for names, weights in found.items()
    ]  # fmt: skip
    return markdown_table(["system", "target", *sources], rows, 2)


def _seeds(seeds: Sequence[int | None]) -> str:
    return ", ".join(map(str, seeds))


# ---- the report ----

HOW = (
    "Scores are of the last update, in percent; ± is the standard error of the mean over seeds. That of one run "
    "is that from the number of examples it is scored on. Minutes are of training, of all runs of a seed."
)
SPREAD = "Spread: the standard deviation of a run's scores across tasks."
DATA = "% of the data: training examples that were trained on at least once."
PAIRED = (
    "± is the standard error of the mean of differences with the same seed. A star: chance alone would do that in one "
    "of twenty such differences (Student's t)."
)


def report(content: Mapping[str, Any], title: str) -> str:
    """The whole text."""
    records = list(content["runs"].values())
    settings = content["settings"]
    lines = [f"# {title}", _surroundings(records), _settings(settings)]
    for heading, kind, paper in _sections(records, settings):
        if kind is None or not kind.systems:
            continue
        lines += [f"## {heading}", score_table(kind, paper)]
        lines.append(" ".join([HOW, *_extra_notes(kind)]))
        if len(kind.systems) > 1:
            lines += [difference_table(kind, bool(paper) and "sections" not in settings), PAIRED]
        shares = share_table(kind) if len(kind.systems[0].runs[0].scores) > 1 else ""
        lines += ["Each task's share of the examples that were trained on, in percent:", shares] if shares else []
        weights = weight_table(kind)
        lines += ["The weight of each source, in percent, mean over layers:", weights] if weights else []
        if kind.incomplete:
            lines.append(f"Not finished, and not in the tables: {', '.join(kind.incomplete)}.")
    lines += ["## Commands", "The first run of each system, with one thread:", _commands(records)]
    return "\n\n".join(lines) + "\n"


def _sections(records: Sequence[Record], settings: Mapping[str, Any]) -> list[tuple[str, Kind | None, Any]]:
    """Headings, what stands below them, and a paper's figures beside it: mixtures and new tasks, or a study's own."""
    paper = settings.get("paper", {})
    if "sections" in settings:  # by stage
        return [
            (heading, mixtures(records, int(stage)), paper if int(stage) == 1 else {})
            for stage, heading in settings["sections"].items()
        ]
    return [
        ("Mixtures", mixtures(records), paper),
        ("New tasks, by the share of their examples", new_tasks(records), {}),
    ]


def _extra_notes(kind: Kind) -> list[str]:
    extra = _extras(kind)
    return [text for name, text in (("spread", SPREAD), ("% of the data", DATA)) if name in extra]


def _surroundings(records: Sequence[Record]) -> str:
    commits = ", ".join(dict.fromkeys(record["commit"] for record in records))
    hardware = ", ".join(dict.fromkeys(record["hardware"] for record in records))
    versions = ", ".join(f"{name} {number}" for name, number in records[0]["versions"].items())
    return f"Hardware: {hardware}. Versions: {versions}. Commit: {commits}."


def _settings(settings: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in settings.items() if name not in ("paper", "sections")}
    return (
        "Settings: "
        + "; ".join(f"{name} {json.dumps(value, ensure_ascii=False)}" for name, value in shown.items())
        + "."
    )


def _commands(records: Sequence[Record]) -> str:
    first: dict[str, list[str]] = {}
    for record in records:
        commands = [record["add_task_command"]] if "add_task_command" in record else []
        first.setdefault(record["system"], [shlex.join(words) for words in (*commands, record["command"])])
    return "\n".join(["```", *(line for lines in first.values() for line in lines), "```"])


@click.command()
@click.argument("result", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--title", default="Training compared: benchmarks", show_default=True, help="The report's heading.")
def main(result: Path, title: str) -> None:
    """Write the tables of RESULT, a JSON file, beside it."""
    content = json.loads(result.read_text(encoding="utf-8"))
    write_text(result.with_suffix(".md"), report(content, title))
    click.echo(result.with_suffix(".md"))


if __name__ == "__main__":
    sys.exit(main())
