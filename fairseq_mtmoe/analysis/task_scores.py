"""The scores of a benchmark's tasks, with their standard errors: averages, JSON, tables.

Averages are those of MT-TaG's tables: every task counts once, also one with several sets (MNLI), over the small tasks
and over all. Scores and errors are in percent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from fairseq_mtmoe.analysis.published import PublishedRow
from fairseq_mtmoe.analysis.tables import Table, with_error

SMALL, ALL = "small", "all"
TITLES = {SMALL: "Small", ALL: "All"}
NOTE = (
    "±: standard error from the number of examples, not from other seeds; of means over examples from the "
    "variance, of other metrics by the bootstrap."
)


@dataclass(frozen=True)
class SetScore:
    """What a model reached on one set of a task.

    Attributes:
        name: `mnli`, or `mnli/mismatched`.
        examples: in the set.
        score: the task's metric over the set.
        standard_error: of it; NaN of a single example.
        data_sha256: of the files that the set is from.
        also: the task's further metrics: score and standard error of each.
    """

    name: str
    examples: int
    score: float
    standard_error: float
    data_sha256: str = ""
    also: Mapping[str, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskScore:
    """What a model reached on one task: the mean over its sets.

    Attributes:
        task: its name in the table of tasks.
        title: its name for people.
        metric: which figure it is.
        small: whether it counts among the small tasks.
        sets: one or more.
        group: of tasks with an average of its own; empty: none.
    """

    task: str
    title: str
    metric: str
    small: bool
    sets: tuple[SetScore, ...]
    group: str = ""

    @property
    def score(self) -> float:
        """The mean over the sets."""
        return fmean(one.score for one in self.sets)

    @property
    def standard_error(self) -> float:
        """Of this mean of independent sets."""
        return error_of_mean([one.standard_error for one in self.sets])

    @property
    def also(self) -> dict[str, tuple[float, float]]:
        """The further metrics, likewise."""
        sets = [one.also for one in self.sets]
        return {
            name: (fmean(also[name][0] for also in sets), error_of_mean([also[name][1] for also in sets]))
            for name in sets[0]
        }

    @property
    def examples(self) -> int:
        """In all sets."""
        return sum(one.examples for one in self.sets)


@dataclass(frozen=True)
class Average:
    """The mean over the tasks of a group."""

    tasks: int
    score: float
    standard_error: float


def error_of_mean(errors: Sequence[float]) -> float:
    """The standard error of a mean of independent figures with these standard errors."""
    return math.sqrt(sum(error**2 for error in errors)) / len(errors)


def groups(scores: Sequence[TaskScore]) -> dict[str, list[str]]:
    """The tasks of the small group, if there are some, those of each other one, if there are several, and all tasks."""
    small = [score.task for score in scores if score.small]
    named = named_groups({score.task: score.group for score in scores})
    return {**({SMALL: small} if small else {}), **named, ALL: [score.task for score in scores]}


def named_groups(group_of: Mapping[str, str]) -> dict[str, list[str]]:
    """The tasks of each group, where there are several; of tasks without one nothing."""
    found: dict[str, list[str]] = {}
    for task, group in group_of.items():
        if group:
            found.setdefault(group, []).append(task)
    return found if len(found) > 1 else {}


def averages(scores: Sequence[TaskScore]) -> dict[str, Average]:
    """The averages of the groups."""
    by_task = {score.task: score for score in scores}
    found = {}
    for name, tasks in groups(scores).items():
        members = [by_task[task] for task in tasks]
        error = error_of_mean([one.standard_error for one in members])
        found[name] = Average(len(members), fmean(one.score for one in members), error)
    return found


def to_json(scores: Sequence[TaskScore], settings: Mapping[str, object]) -> str:
    """`{"settings": {…}, "tasks": {"rte": {"title", "metric", "small", "score", …, "sets"}}, "averages": {…}}`."""
    content = {
        "settings": dict(settings),
        "tasks": {score.task: _task_fields(score) for score in scores},
        "averages": {name: asdict(average) for name, average in averages(scores).items()},
    }
    return json.dumps(_without_nan(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _task_fields(score: TaskScore) -> dict[str, Any]:
    sets = {one.name: {key: value for key, value in asdict(one).items() if key != "name"} for one in score.sets}
    whole = {"score": score.score, "standard_error": score.standard_error, "examples": score.examples}
    of = {"title": score.title, "metric": score.metric, "small": score.small, "group": score.group}
    return {**of, **whole, "sets": sets}


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def from_content(content: Any) -> tuple[dict[str, Any], list[TaskScore]]:
    """The settings and scores in the value of a file that `to_json` wrote. Raises `ValueError` on any other."""
    try:
        scores = [_task_score(task, fields) for task, fields in content["tasks"].items()]
        if not scores:
            raise ValueError("there is no task")
        return dict(content["settings"]), scores
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"no scores of a benchmark: {error}") from error


def _task_score(task: str, fields: Any) -> TaskScore:
    sets = tuple(
        SetScore(
            name,
            int(one["examples"]),
            _number(one["score"]),
            _error(one["standard_error"]),
            one["data_sha256"],
            {metric: (_number(figure), _error(error)) for metric, (figure, error) in one.get("also", {}).items()},
        )
        for name, one in fields["sets"].items()
    )
    if not sets:
        raise ValueError(f"{task} has no set")
    return TaskScore(
        task, str(fields["title"]), str(fields["metric"]), bool(fields["small"]), sets, str(fields.get("group", ""))
    )


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 100.001:  # it was rounded
        raise ValueError(f"a score is {value!r}")
    return float(value)


def _error(value: Any) -> float:
    return math.nan if value is None else _number(value)


def score_table(scores: Sequence[TaskScore], published: PublishedRow | None = None) -> Table:
    """A row for each task, and for each set of a task with several, and the averages; beside them a paper's figures."""
    rows = []
    for score in scores:
        rows.append([score.title, *_cells(score), *_published(published, [score.task])])
        for name, (figure, error) in score.also.items():
            rows.append(["", name, "", with_error(figure, error), *_published(published, [])])
        for one in score.sets if len(score.sets) > 1 else ():
            number = with_error(one.score, one.standard_error)
            rows.append([f"· {one.name}", "", f"{one.examples:,}", number, *_published(published, [])])
    bottom = [
        [
            TITLES.get(name, name),
            f"{len(tasks)} task{'s' * (len(tasks) > 1)}",
            "",
            number,
            *_published(published, tasks, name, groups(scores)),
        ]
        for (name, tasks), number in zip(
            groups(scores).items(),
            (with_error(mean.score, mean.standard_error) for mean in averages(scores).values()),
            strict=True,
        )
    ]
    columns = ["task", "metric", "examples", "score", *([published.title] if published else [])]
    return Table(columns, rows, bottom, texts=2)


def _cells(score: TaskScore) -> list[str]:
    return [score.metric, f"{score.examples:,}", with_error(score.score, score.standard_error)]


def _published(
    row: PublishedRow | None, tasks: Sequence[str], name: str = "", groups: Collection[str] = ()
) -> list[str]:
    return [row.mean_of(tasks) or row.average(name, groups)] if row else []


def notes(published: PublishedRow | None) -> list[str]:
    """What stands below the table."""
    return [NOTE, *([published.note] if published else [])]


def to_markdown(
    scores: Sequence[TaskScore], settings: Mapping[str, object], published: PublishedRow | None = None
) -> str:
    """The table, what its signs mean, and the settings."""
    table = score_table(scores, published).in_markdown()
    lines = [table, "", *notes(published), "", *(f"- {name}: {value}" for name, value in settings.items())]
    return "\n".join(lines) + "\n"
