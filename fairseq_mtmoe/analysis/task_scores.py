"""The scores of a benchmark's tasks, with their standard errors: averages, JSON, tables.

Averages are those of MT-TaG's tables: every task counts once, also one with several sets (MNLI), over the small tasks
and over all. CA-MTL's stand beside them where they differ: every set counts once, by its F1 if it has one (MRPC, QQP).
Scores and errors are in percent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Annotated, Any, Required

from fairseq_mtmoe.analysis.published import PublishedRow
from fairseq_mtmoe.analysis.score_files import SETTINGS, Count
from fairseq_mtmoe.analysis.tables import Table, with_error
from fairseq_mtmoe.io.typed import Name, Rule, Text, between, fault

SMALL, ALL = "small", "all"
TITLES = {SMALL: "Small", ALL: "All"}
CA_MTL = " (CA-MTL)"  # behind a group's name: its average as CA-MTL's tables have it
NOTE = (
    "±: standard error from the number of examples, not from other seeds; of means over examples from the "
    "variance, of other metrics by the bootstrap."
)
MAJORITY = "majority"
MAJORITY_NOTE = (
    "majority: the score of one label for every example, the label with the best score: for accuracy, the most "
    "frequent one."
)
CA_MTL_NOTE = "(CA-MTL): every set counts once, by its F1 where it has one."


_Percent = Annotated[float, between(-100.001, 100.001)]  # it was rounded
_SET: Any = {
    "examples": Required[Count], "score": Required[_Percent], "standard_error": Required[_Percent | None],
    "data_sha256": Required[Text], "also": dict[Text, tuple[_Percent, _Percent | None]],
    "majority": dict[Text, _Percent], "constant": Text,
}  # fmt: skip


def _have_same_metrics(sets: dict[str, Any]) -> bool:
    return len({tuple(one.get("also", ())) for one in sets.values()}) == 1


_TASK: Any = {
    "title": Required[Text], "metric": Required[Text], "small": Required[bool], "group": Text,
    "sets": Required[Annotated[dict[Name, _SET], Rule("sets of data with the same metrics", _have_same_metrics)]],
}  # fmt: skip
_CONTENT: Any = {
    "settings": Required[SETTINGS],
    "tasks": Required[Annotated[dict[Name, _TASK], Rule("one task or more", lambda tasks: len(tasks) > 0)]],
}


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
        majority: by metric, the score of one label for every example, the best that there is; empty if no label suits.
        constant: the label that the model predicted for every example; empty if it predicted several.
    """

    name: str
    examples: int
    score: float
    standard_error: float
    data_sha256: str = ""
    also: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    majority: Mapping[str, float] = field(default_factory=dict)
    constant: str = ""


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
    def as_in_ca_mtl(self) -> list[tuple[str, float, float]]:
        """Return what counts in CA-MTL's averages: a metric, score and standard error for each set."""
        own = ((self.metric, one.score, one.standard_error) for one in self.sets)
        return [("f1", *one.also["f1"]) if "f1" in one.also else of for one, of in zip(self.sets, own, strict=True)]

    def majority(self, metric: str) -> float | None:
        """Return the mean over the sets of what one label for every example scores; None if it is not known."""
        known = [one.majority.get(metric) for one in self.sets]
        return fmean(value for value in known if value is not None) if None not in known else None

    @property
    def constants(self) -> list[str]:
        """Return a sentence for each set of which the model predicted one label alone."""
        return [f"{one.name}: every prediction is `{one.constant}`." for one in self.sets if one.constant]

    @property
    def examples(self) -> int:
        """In all sets."""
        return sum(one.examples for one in self.sets)


@dataclass(frozen=True)
class Average:
    """The mean over the tasks of a group.

    Attributes:
        tasks: how many figures it is of; in CA-MTL's averages sets.
    """

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
    """The averages of the groups, and behind each CA-MTL's where it is of other figures."""
    by_task = {score.task: score for score in scores}
    found = {}
    for name, tasks in groups(scores).items():
        members = [by_task[task] for task in tasks]
        own = [(one.metric, one.score, one.standard_error) for one in members]
        found[name] = _average(own)
        theirs = [figure for one in members for figure in one.as_in_ca_mtl]
        if name != SMALL and len(members) > 1 and [one[:2] for one in theirs] != [one[:2] for one in own]:
            found[name + CA_MTL] = _average(theirs)
    return found


def _average(figures: Sequence[tuple[str, float, float]]) -> Average:
    return Average(
        len(figures), fmean(score for _, score, _ in figures), error_of_mean([error for _, _, error in figures])
    )


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
    found = fault(content, _CONTENT)
    if found is not None:
        raise ValueError(f"no scores of a benchmark: it {found}")
    return content["settings"], [_task_score(task, fields) for task, fields in content["tasks"].items()]


def _task_score(task: str, fields: dict[str, Any]) -> TaskScore:
    sets = tuple(
        SetScore(
            name,
            one["examples"],
            one["score"],
            _error(one["standard_error"]),
            one["data_sha256"],
            {metric: (figure, _error(error)) for metric, (figure, error) in one.get("also", {}).items()},
            dict(one.get("majority", {})),
            one.get("constant", ""),
        )
        for name, one in fields["sets"].items()
    )
    return TaskScore(task, fields["title"], fields["metric"], fields["small"], sets, fields.get("group", ""))


def _error(value: float | None) -> float:
    return math.nan if value is None else value


def score_table(scores: Sequence[TaskScore], published: PublishedRow | None = None) -> Table:
    """A row for each task, and for each set of a task with several, and the averages.

    Beside them stand the majority class's scores, where some are known, and a paper's figures.
    """
    has_majority = any(one.majority for score in scores for one in score.sets)

    def row(title: str, metric: str, examples: str, number: str, majority: float | None, paper: str) -> list[str]:
        shown = "" if majority is None else f"{majority:.2f}"
        return [title, metric, examples, number, *([shown] if has_majority else []), *([paper] if published else [])]

    rows = []
    for score in scores:
        number, paper = (
            with_error(score.score, score.standard_error),
            published.mean_of([score.task]) if published else "",
        )
        rows.append(row(score.title, score.metric, f"{score.examples:,}", number, score.majority(score.metric), paper))
        for name, figure in score.also.items():
            paper = (
                published.mean_of_figures([(score.task, name, False)])
                if published and name in published.further
                else ""
            )
            rows.append(row("", name, "", with_error(*figure), score.majority(name), paper))
        for one in score.sets if len(score.sets) > 1 else ():
            number = with_error(one.score, one.standard_error)
            rows.append(row(f"· {one.name}", "", f"{one.examples:,}", number, one.majority.get(score.metric), ""))
    bottom = [
        row(_title(name), _counted(name, mean), "", with_error(mean.score, mean.standard_error), None, paper)
        for name, mean in averages(scores).items()
        for paper in [_published_average(published, name, scores) if published else ""]
    ]
    columns = row("task", "metric", "examples", "score", None, published.title if published else "")
    columns[4 : 4 + has_majority] = [MAJORITY] * has_majority
    return Table(columns, rows, bottom, texts=2)


def _title(name: str) -> str:
    group = name.removesuffix(CA_MTL)
    return TITLES.get(group, group) + name[len(group) :]


def _counted(name: str, mean: Average) -> str:
    what = "figure" if name.endswith(CA_MTL) else "task"
    return f"{mean.tasks} {what}{'s' * (mean.tasks > 1)}"


def _published_average(row: PublishedRow, name: str, scores: Sequence[TaskScore]) -> str:
    """The cell of an average; CA-MTL's own are of the figures that it counts."""
    of_groups = groups(scores)
    group = name.removesuffix(CA_MTL)
    if group == name:
        printed = "" if name + CA_MTL in averages(scores) else row.average(name, of_groups)
        return row.mean_of(of_groups[name]) or printed
    members = [score for score in scores if score.task in of_groups[group]]
    counted = [(score.task, metric, metric == score.metric) for score in members for metric, _, _ in score.as_in_ca_mtl]
    return row.mean_of_figures(counted) or row.average(group, of_groups)


def notes(published: PublishedRow | None, scores: Sequence[TaskScore] = ()) -> list[str]:
    """What stands below the table."""
    found = [NOTE]
    if any(one.majority for score in scores for one in score.sets):
        found.append(MAJORITY_NOTE)
    if any(name.endswith(CA_MTL) for name in (averages(scores) if scores else ())):
        found.append(CA_MTL_NOTE)
    constants = [sentence for score in scores for sentence in score.constants]
    return [*found, *constants, *([published.note] if published else [])]


def to_markdown(
    scores: Sequence[TaskScore], settings: Mapping[str, object], published: PublishedRow | None = None
) -> str:
    """The table, what its signs mean, and the settings."""
    table = score_table(scores, published).in_markdown()
    lines = [table, "", *notes(published, scores), "", *(f"- {name}: {value}" for name, value in settings.items())]
    return "\n".join(lines) + "\n"
