"""Files of scores as rows: pairs (`mtmoe evaluate`) or tasks (`fairseq-validate`).

docs/reference/run_log.md lists the groups of rows. Rows of the run `majority` are scores of one label for every
example.
"""

from __future__ import annotations

import glob
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Required

import numpy as np

from fairseq_mtmoe.analysis import run_log
from fairseq_mtmoe.analysis.rows import ALL, TIERS, Moments, Row, chosen_rows
from fairseq_mtmoe.analysis.scores import Count, PairScore, score_of
from fairseq_mtmoe.data.translation.tiers import TIER_RULE
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json
from fairseq_mtmoe.io.typed import Name, Rule, Text, between, fault

JSON_FILE, MARKDOWN_FILE, LATEX_FILE = "scores.json", "scores.md", "scores.tex"
SCORES = "scores"  # the folder of scores beside a checkpoint
BEST = "checkpoint_best.pt"
SMALL = "small"
TITLES = {SMALL: "Small", ALL: "All"}
CA_MTL = " (CA-MTL)"  # suffix of a group's name: its average as in CA-MTL's tables
MAJORITY = "majority"
NOW = Moments(*np.full((4, 1), np.nan))

_SETTINGS = Required[{"checkpoint": Text, "subset": Text, "seed": int | None, "updates": int | None}]
_Percent = Annotated[float, between(-100.001, 100.001)]  # tolerance: scores were rounded
_SET: Any = {
    "examples": Required[Count], "score": Required[_Percent], "standard_error": Required[_Percent | None],
    "data_sha256": Required[Text], "also": dict[Text, tuple[_Percent, _Percent | None]],
    "majority": dict[Text, _Percent], "constant": Text,
}  # fmt: skip
_SAME_METRICS = Rule("sets of data with the same metrics",
                     lambda sets: len({tuple(one.get("also", ())) for one in sets.values()}) == 1)  # fmt: skip
_TASK: Any = {
    "title": Required[Text], "metric": Required[Text], "small": Required[bool], "group": Text,
    "sets": Required[Annotated[dict[Name, _SET], _SAME_METRICS]],
}  # fmt: skip
_TASKS = Annotated[dict[Name, _TASK], Rule("one task or more", lambda tasks: len(tasks) > 0)]
_PAIRS: Any = {
    "settings": _SETTINGS,
    "pairs": Required[Annotated[dict[Name, dict[str, Any]], Rule("one pair or more", lambda pairs: len(pairs) > 0)]],
}
_BENCHMARK: Any = {"settings": _SETTINGS, "tasks": Required[_TASKS]}


@dataclass(frozen=True)
class Scores:
    """Scores of a checkpoint, or of several with the same seed and different tasks.

    Attributes:
        rows: of pairs, or of tasks and their sets.
        groups: pairs or tasks of each tier or group with an average, `all` last.
        data: by pair or task, properties that must be equal where scores are compared.
        pairs: scores of pairs in table order: low tier first.
        tasks: as in the JSON file.
    """

    rows: list[Row]
    groups: dict[str, list[str]]
    data: dict[str, dict[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    pairs: Mapping[str, PairScore] = field(default_factory=dict)
    tasks: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()

    def of(self, *groups: str, **wanted: str) -> list[Row]:
        """Return the rows of these groups whose other fields have these values."""
        return chosen_rows(self.rows, *groups, **wanted)

    @cached_property
    def own(self) -> dict[str, Row]:
        """BLEU by pair, or the row of the main metric by task."""
        found: dict[str, Row] = {}
        for row in self.of("pair", "task", run=""):
            found.setdefault(row.task, row)
        return found

    @property
    def subset(self) -> str:
        """The subset that was scored, such as `test`."""
        return str(self.settings.get("subset", ""))

    @cached_property
    def seed(self) -> int | None:
        """The training's seed, from settings or a run log nearby; None if unknown.

        The log may be beside an evaluation or its checkpoint.
        """
        if self.tasks:
            return self.settings.get("seed")
        near = [path for folder in map(Path, self.folders[:1]) for path in (folder, *folder.absolute().parents[:2])]
        near += [Path(name.partition(":")[0]).parent for name in self.checkpoints[:1]]
        return next((int(seed) for seed in (_of_run(folder, "seed") for folder in near) if seed is not None), None)

    @cached_property
    def averages(self) -> list[Row]:
        """A row per group and metric of all members; CA-MTL's average if it differs."""
        return [row for name, members in self.groups.items() for row in self._averages(name, members)]

    def _averages(self, name: str, members: Sequence[str]) -> list[Row]:
        if self.pairs:
            of = [{row.metric: row for row in self.of("pair", task=pair)} for pair in members]
            metrics = [metric for metric in of[0] if all(metric in rows for rows in of)]
            return [mean_row(ALL if name == ALL else "tier", name, metric, [rows[metric] for rows in of])
                    for metric in metrics]  # fmt: skip
        own, counted = [self.own[task] for task in members], self.counted(members)
        found = [mean_row("group", name, "score", own)]
        differs = [(row.metric, row.figure) for row in own] != [(row.metric, row.figure) for row in counted]
        if name != SMALL and len(members) > 1 and differs:
            found.append(mean_row("group", name + CA_MTL, "score", counted))
        return found

    def counted(self, tasks: Iterable[str]) -> list[Row]:
        """Return the rows that CA-MTL's average counts: F1 of a set, else the main metric."""
        found = [{row.metric: row for row in self.of("set", task=task, subset=name, run="")}
                 for task in tasks if task in self.tasks for name in self.tasks[task]["sets"]]  # fmt: skip
        return [rows["f1"] if "f1" in rows else next(iter(rows.values())) for rows in found]

    @property
    def majority(self) -> dict[str, float]:
        """Score of one label for every example, by task and its main metric, where known."""
        rows = [row for row in self.of("task", run=MAJORITY) if row.metric == self.own[row.task].metric]
        return {row.task: row.figure for row in rows}

    @property
    def has_tiers(self) -> bool:
        """Return whether a pair has a tier."""
        return any(score.tier for score in self.pairs.values())

    @property
    def remarks(self) -> list[str]:
        """Remarks: the rule of tiers, missing sentences, and sets with one label for all predictions."""
        sets = [of for task in self.tasks.values() for of in task["sets"].items()]
        return [
            *([TIER_RULE] if self.has_tiers else []),
            *(f"{pair}: {remark}" for pair, score in self.pairs.items() for remark in score.remarks),
            *(f"{name}: every prediction is `{one['constant']}`." for name, one in sets if one.get("constant")),
        ]

    @property
    def signatures(self) -> dict[str, str]:
        """The signatures, such as `BLEU …`, with their pairs if not of all pairs."""
        of_pairs = {pair: one.signatures for pair, one in self.pairs.items()}
        found: dict[str, list[str]] = {}
        for metric in dict.fromkeys(metric for of in of_pairs.values() for metric in of):
            for pair in (pair for pair, of in of_pairs.items() if metric in of):
                found.setdefault(f"{metric} {of_pairs[pair][metric]}", []).append(pair)
        return {of: "" if len(pairs) == len(self.pairs) else f" ({', '.join(pairs)})" for of, pairs in found.items()}

    def title(self, task: str) -> str:
        """Return the displayed name of a task or pair."""
        return str(self.tasks[task]["title"]) if task in self.tasks else task

    def joined(self, other: Scores) -> Scores:
        """Return the scores of both, which have different tasks."""
        names = sorted({**self.groups, **other.groups}, key=lambda name: name == ALL)  # it stays last
        groups = {name: [*self.groups.get(name, ()), *other.groups.get(name, ())] for name in names}
        return replace(
            self, rows=self.rows + other.rows, groups=groups, data={**self.data, **other.data},
            pairs={**self.pairs, **other.pairs}, tasks={**self.tasks, **other.tasks},
            folders=self.folders + other.folders, checkpoints=self.checkpoints + other.checkpoints,
        )  # fmt: skip


def score_row(group: str, task: str, metric: str, value: float, n: int, error: float | None = None, **more: str) -> Row:
    """Return a row of one moment."""
    stderr = math.nan if error is None else error
    return Row(more.pop("run", ""), group, metric, NOW, np.array([float(value)]), task, n=n, stderr=stderr, **more)


def mean_row(group: str, task: str, metric: str, rows: Sequence[Row], n: int | None = None, run: str = "") -> Row:
    """Return the mean of rows, with the standard error of independent figures."""
    error = math.sqrt(sum(row.stderr**2 for row in rows)) / len(rows)
    mean = math.fsum(row.figure for row in rows) / len(rows)
    return score_row(group, task, metric, mean, len(rows) if n is None else n, error, run=run)


def in_groups(group_of: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the tasks of each group, if there are several groups."""
    found: dict[str, list[str]] = {}
    for task, group in group_of.items():
        if group:
            found.setdefault(group, []).append(task)
    return found if len(found) > 1 else {}


def scores_of_pairs(scores: Iterable[PairScore], settings: Mapping[str, Any]) -> Scores:
    """Return rows of pairs: low tier first, then by name; pivots after the direct pair.

    Pairs without a tier are last. Averages are of direct translation; pairs that were also translated by a pivot have
    an average of each way.
    """
    rank = {tier: index for index, tier in enumerate(TIERS)}
    ordered = sorted(scores, key=lambda one: (rank.get(one.tier, len(TIERS)), one.direction, one.pivot))
    pairs = {one.pair: one for one in ordered}
    rows = [score_row("pair", pair, metric, value, one.sentences) for pair, one in pairs.items()
            for metric, value in one.figures.items()]  # fmt: skip
    same = {"data": settings.get("data_sha256"), "kind of references": settings.get("references")}
    data = {pair: {"BLEU signature": one.bleu_signature, **same} for pair, one in pairs.items()}
    direct = [pair for pair, one in pairs.items() if not one.pivot]
    tiers = {tier: [pair for pair in direct if pairs[pair].tier == tier] for tier in TIERS}
    by_pivot: dict[str, list[str]] = {}
    for pair, one in pairs.items():
        if one.pivot:
            by_pivot.setdefault(f"without {one.pivot}", []).append(one.direction)
            by_pivot.setdefault(f"through {one.pivot}", []).append(pair)
    found = {name: members for name, members in {**tiers, **by_pivot}.items() if members}
    groups = {**found, ALL: direct}
    return Scores(rows, groups, data, settings, pairs)


def scores_of_tasks(tasks: Mapping[str, dict[str, Any]], settings: Mapping[str, Any]) -> Scores:
    """Return rows of tasks and their sets, from the JSON file's form."""
    rows: list[Row] = []
    data: dict[str, dict[str, Any]] = {}
    for task, record in tasks.items():
        metric, sets = record["metric"], record["sets"]
        of_sets = [row for name, one in sets.items() for row in _set_rows(task, metric, name, one)]
        for run, of in dict.fromkeys((row.run, row.metric) for row in of_sets):
            same = [row for row in of_sets if (row.run, row.metric) == (run, of)]
            if len(same) == len(sets):
                rows.append(mean_row("task", task, of, same, sum(one["examples"] for one in sets.values()), run))
        rows += of_sets
        data[task] = {"metric": metric, "set of data": [(name, one["data_sha256"]) for name, one in sets.items()]}
    small = [task for task, record in tasks.items() if record["small"]]
    named = in_groups({task: record.get("group", "") for task, record in tasks.items()})
    groups = {**({SMALL: small} if small else {}), **named, ALL: list(tasks)}
    return Scores(rows, groups, data, settings, {}, tasks)


def _set_rows(task: str, metric: str, name: str, one: Mapping[str, Any]) -> Iterable[Row]:
    for of, (score, error) in {metric: (one["score"], one["standard_error"]), **one.get("also", {})}.items():
        yield score_row("set", task, of, score, one["examples"], error, subset=name)
    for of, score in one.get("majority", {}).items():
        yield score_row("set", task, of, score, one["examples"], subset=name, run=MAJORITY)


def scores_in(content: Any) -> Scores:
    """Return the scores in a file's value (ValueError: it holds something else)."""
    is_of_pairs = isinstance(content, dict) and "pairs" in content
    found = fault(content, _PAIRS if is_of_pairs else _BENCHMARK)
    if found is not None:
        raise ValueError(f"no scores of {'mtmoe evaluate' if is_of_pairs else 'a benchmark'}: it {found}")
    if is_of_pairs:
        pairs = [score_of({"pair": pair, **fields}) for pair, fields in content["pairs"].items()]
        return scores_of_pairs(pairs, content["settings"])
    return scores_of_tasks(content["tasks"], content["settings"])


def expanded(pattern: str) -> list[Path]:
    """Return the folders that match a pattern; no shell expands it after `name=`."""
    found = sorted(map(Path, glob.glob(pattern))) if glob.has_magic(pattern) else [Path(pattern)]
    if not found:
        raise UserError(f"`{pattern}` must match folders of runs, but matches no file.")
    return found


def score_files(path: Path) -> list[Path]:
    """Return the scores that `path` may mean: itself, one in it, or several below."""
    for file in (path, path / JSON_FILE, path / SCORES / JSON_FILE):
        if file.is_file():
            return [file]
    return sorted((path / SCORES).glob(f"*/{JSON_FILE}"))


def score_file(path: Path) -> Path:
    """Return the file of scores of a folder or run (UserError: none or several)."""
    found = score_files(path)
    if len(found) == 1:
        return found[0]
    if found:
        folders = ", ".join(str(file.parent) for file in found)
        raise UserError(f"`{path}` must have one folder of scores, but has {len(found)}: choose one of {folders}.")
    data = shlex.quote(_of_run(path, "data") or "DATA")
    raise UserError(
        f"`{path}` must be a folder with {JSON_FILE}, or a run with one below {SCORES}/, but has none: "
        f"`mtmoe evaluate {data} --path {path / BEST}` writes it."
    )


def read_scores(path: Path, rule: str = "the scores of fairseq-validate --task glue or of mtmoe evaluate") -> Scores:
    """Read the scores in a folder of scores or of a run (UserError: there are none)."""
    file = score_file(path)
    content = read_json(file, "scores")
    try:
        scores = scores_in(content)
    except ValueError as error:
        raise UserError(f"`{file}` must hold {rule}, but holds something else.") from error
    return replace(scores, folders=(str(file.parent),), checkpoints=(str(scores.settings.get("checkpoint", "")),))


def _of_run(folder: Path, name: str) -> Any:
    """Return a field of a run log's start; None if it is missing or unreadable."""
    try:
        events = run_log.read(folder / run_log.FILE_NAME)
    except UserError:
        return None
    return next((event.get(name) for event in events if event["event"] == "run"), None)
