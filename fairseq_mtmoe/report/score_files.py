"""Files of scores as rows: pairs (`mtmoe evaluate`) or tasks (`fairseq-validate`).

docs/reference/run_log.md lists the groups of rows. Rows of the run `majority` are scores of one
label for every example.
"""

from __future__ import annotations

import glob
import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Required

import numpy as np

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_json
from fairseq_mtmoe.core.tiers import TIER_RULE
from fairseq_mtmoe.core.typed import OR_LIST, Name, Rule, Text, between, fault, mapping
from fairseq_mtmoe.report import run_log
from fairseq_mtmoe.report.rows import ALL, TIERS, Row, chosen_rows, first_by_task, of_kind
from fairseq_mtmoe.report.scores import Count, PairScore, score_of

JSON_FILE = "scores.json"
MARKDOWN_FILE = "scores.md"
LATEX_FILE = "scores.tex"
SCORES = "scores"  # the folder of scores beside a checkpoint
BEST = "checkpoint_best.pt"
SMALL = "small"
TITLES = {SMALL: "Small", ALL: "All"}
MAJORITY = "majority"
NEVER = np.array([math.nan])  # the times of scores are unknown

_SETTINGS = Required[
    mapping({"checkpoint": Text, "subset": Text, "seed": int | None, "updates": int | None})
]
_Percent = Annotated[float, between(-100.001, 100.001)]  # tolerance: scores were rounded
_SET: Any = mapping(
    {
        "examples": Required[Count],
        "score": Required[_Percent],
        "standard_error": Required[_Percent | None],
        "data_sha256": Required[Text],
        "also": dict[Text, Annotated[tuple[_Percent, _Percent | None], OR_LIST]],
        "majority": dict[Text, _Percent],
        "constant": Text,
    }
)


_SAME_METRICS = Rule(
    "sets of data with the same metrics",
    lambda sets: len({tuple(record.get("also", ())) for record in sets.values()}) == 1,
)
_TASK: Any = mapping(
    {
        "title": Required[Text],
        "metric": Required[Text],
        "small": Required[bool],
        "group": Text,
        "sets": Required[Annotated[dict[Name, _SET], _SAME_METRICS]],
    }
)
_SOME = Rule("one entry or more", bool)
_PAIRS: Any = mapping(
    {"settings": _SETTINGS, "pairs": Required[Annotated[dict[Name, dict[str, Any]], _SOME]]}
)
_BENCHMARK: Any = mapping(
    {"settings": _SETTINGS, "tasks": Required[Annotated[dict[Name, _TASK], _SOME]]}
)


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

    @cached_property
    def main(self) -> dict[str, Row]:
        """BLEU by pair, or the row of the main metric by task."""
        return first_by_task(chosen_rows(self.rows, "pair", "task", run=""))

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
        folder = Path(self.folders[0])
        checkpoint = Path(self.checkpoints[0].partition(":")[0])
        for place in (folder, *folder.absolute().parents[:2], checkpoint.parent):
            seed = _logged(place, "seed")
            if seed is not None:
                return int(seed)
        return None

    @cached_property
    def averages(self) -> list[Row]:
        """A row per group and metric that all its members have."""
        rows = []
        rows_by_metric = defaultdict(list)
        if self.tasks:
            rows_by_metric["score"] = [*self.main.values()]
        for row in chosen_rows(self.rows, "pair"):
            rows_by_metric[row.metric].append(row)
        for group, members in self.groups.items():
            for metric, metric_rows in rows_by_metric.items():
                member_rows = [row for row in metric_rows if row.task in members]
                if len(member_rows) == len(members):
                    rows.append(mean_row("average", group, metric, member_rows))
        return rows

    @property
    def majority(self) -> dict[str, float]:
        """Score of one label for every example, by task and its main metric, where known."""
        rows = chosen_rows(self.rows, "task", run=MAJORITY)
        return {row.task: row.figure for row in rows if row.metric == self.main[row.task].metric}

    @property
    def has_tiers(self) -> bool:
        """Return whether a pair has a tier."""
        return any(score.tier for score in self.pairs.values())

    @property
    def remarks(self) -> list[str]:
        """Remarks on tiers, missing sentences, and sets whose predictions are one label."""
        remarks = [TIER_RULE] if self.has_tiers else []
        for pair, score in self.pairs.items():
            for remark in score.remarks:
                remarks.append(f"{pair}: {remark}")
        for task in self.tasks.values():
            for name, record in task["sets"].items():
                if record.get("constant"):
                    remarks.append(f"{name}: every prediction is `{record['constant']}`.")
        return remarks

    @property
    def signatures(self) -> dict[str, str]:
        """The signatures, such as `BLEU …`, with their pairs if not of all pairs."""
        signatures = {}
        for metric in dict.fromkeys(row.metric for row in self.rows):
            pairs_by_signature = defaultdict(list)
            for pair, score in self.pairs.items():
                if metric in score.signatures:
                    pairs_by_signature[score.signatures[metric]].append(pair)
            for signature, pairs in pairs_by_signature.items():
                named = f" ({', '.join(pairs)})"
                if len(pairs) == len(self.pairs):
                    named = ""
                signatures[f"{metric} {signature}"] = named
        return signatures

    def title(self, task: str) -> str:
        """Return the displayed name of a task or pair."""
        return str(self.tasks[task]["title"]) if task in self.tasks else task

    def joined(self, other: Scores) -> Scores:
        """Return the scores of both, which have different tasks."""
        groups: dict[str, list[str]] = {}
        # `all` stays last.
        for name in sorted({**self.groups, **other.groups}, key=lambda name: name == ALL):
            groups[name] = [*self.groups.get(name, ()), *other.groups.get(name, ())]
        return Scores(
            self.rows + other.rows,
            groups,
            self.data | other.data,
            self.settings,
            {**self.pairs, **other.pairs},
            {**self.tasks, **other.tasks},
            self.folders + other.folders,
            self.checkpoints + other.checkpoints,
        )


def score_row(
    group: str,
    task: str,
    metric: str,
    value: float,
    n: int,
    error: float | None = None,
    **more: str,
) -> Row:
    """Return a row of one moment."""
    stderr = math.nan if error is None else error
    values = np.array([float(value)])
    return Row(group, metric, values, NEVER, NEVER, NEVER, task, n=n, stderr=stderr, **more)


def mean_row(
    group: str, task: str, metric: str, rows: Sequence[Row], n: int = 0, run: str = ""
) -> Row:
    """Return the mean of rows, with the standard error of independent figures.

    n: number of examples; without it, that of the rows.
    """
    error = math.sqrt(sum(row.stderr**2 for row in rows)) / len(rows)
    mean = math.fsum(row.figure for row in rows) / len(rows)
    return score_row(group, task, metric, mean, n or len(rows), error, run=run)


def in_groups(group_of: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the tasks of each group, if there are several groups."""
    groups = defaultdict(list)
    for task, group in group_of.items():
        if group:
            groups[group].append(task)
    return dict(groups) if len(groups) > 1 else {}


def scores_of_pairs(scores: Iterable[PairScore], settings: Mapping[str, Any]) -> Scores:
    """Return rows of pairs by tier, low first, then by name; without a tier, last."""
    ranks = [*TIERS, ""]
    ordered = sorted(scores, key=lambda score: (ranks.index(score.tier), score.pair))
    rows = []
    data = {}
    pairs = {}
    groups = defaultdict(list)
    for score in ordered:
        pairs[score.pair] = score
        for metric, value in score.figures.items():
            rows.append(score_row("pair", score.pair, metric, value, score.sentences))
        data[score.pair] = {
            "BLEU signature": score.bleu_signature,
            "data": settings.get("data_sha256"),
            "kind of references": settings.get("references"),
        }
        groups[score.tier or ALL].append(score.pair)
    return Scores(rows, {**groups, ALL: list(pairs)}, data, settings, pairs)


def scores_of_tasks(tasks: Mapping[str, dict[str, Any]], settings: Mapping[str, Any]) -> Scores:
    """Return rows of tasks and their sets, from the JSON file's form."""
    rows: list[Row] = []
    data: dict[str, dict[str, Any]] = {}
    group_of = {}
    small = []
    for task, record in tasks.items():
        sets = record["sets"]
        set_rows: list[Row] = []
        for name, scored in sets.items():
            set_rows += _set_rows(task, record["metric"], name, scored)
        similar = defaultdict(list)
        for row in set_rows:
            similar[row.run, row.metric].append(row)
        for (run, metric), same in similar.items():
            if len(same) == len(sets):
                rows.append(mean_row("task", task, metric, same, sum(row.n for row in same), run))
        rows += set_rows
        digests = [(name, scored["data_sha256"]) for name, scored in sets.items()]
        data[task] = {"metric": record["metric"], "set of data": digests}
        group_of[task] = record.get("group", "")
        if record["small"]:
            small.append(task)
    groups = in_groups(group_of)
    if small:
        groups = {SMALL: small, **groups}
    return Scores(rows, {**groups, ALL: list(tasks)}, data, settings, {}, tasks)


def _set_rows(task: str, metric: str, name: str, scored: Mapping[str, Any]) -> Iterator[Row]:
    figures = {metric: (scored["score"], scored["standard_error"]), **scored.get("also", {})}
    for each, (score, error) in figures.items():
        yield score_row("set", task, each, score, scored["examples"], error, subset=name)
    for each, score in scored.get("majority", {}).items():
        yield score_row("set", task, each, score, scored["examples"], subset=name, run=MAJORITY)


def scores_in(content: Any) -> Scores:
    """Return the scores in a file's value (ValueError: it holds something else)."""
    if fault(content, _PAIRS) is None:
        pairs = [score_of({"pair": pair, **fields}) for pair, fields in content["pairs"].items()]
        return scores_of_pairs(pairs, content["settings"])
    wrong = fault(content, _BENCHMARK)
    if wrong is not None:
        raise ValueError(f"no scores: it {wrong}")
    return scores_of_tasks(content["tasks"], content["settings"])


def expanded(pattern: str) -> list[Path]:
    """Return the folders that match a pattern; no shell expands it after `name=`."""
    if not glob.has_magic(pattern):
        return [Path(pattern)]
    folders = sorted(map(Path, glob.glob(pattern)))
    if not folders:
        raise UserError(f"`{pattern}` must match folders of runs, but matches no file.")
    return folders


def score_files(path: Path) -> list[Path]:
    """Return the scores that `path` may mean: itself, one in it, or several below."""
    for file in (path, path / JSON_FILE, path / SCORES / JSON_FILE):
        if file.is_file():
            return [file]
    return sorted((path / SCORES).glob(f"*/{JSON_FILE}"))


def score_file(path: Path) -> Path:
    """Return the file of scores of a folder or run (UserError: none or several)."""
    files = score_files(path)
    if len(files) > 1:
        folders = ", ".join(str(file.parent) for file in files)
        pattern = path.parent / "*" / SCORES / files[0].parent.name
        raise UserError(
            f"`{path}` must have one folder of scores, but has {len(files)}: choose one of "
            f"{folders}; for several runs give a pattern, such as 'NAME={pattern}'."
        )
    if files:
        return files[0]
    data = shlex.quote(_logged(path, "data") or "DATA")
    raise UserError(
        f"`{path}` must be a folder with {JSON_FILE}, or a run with one below {SCORES}/, but has "
        f"none: `mtmoe evaluate {data} --path {path / BEST}` writes it."
    )


def read_scores(path: Path) -> Scores:
    """Read the scores in a folder of scores or of a run (UserError: there are none)."""
    file = score_file(path)
    content = read_json(file, "scores")
    try:
        scores = scores_in(content)
    except ValueError as error:
        raise UserError(
            f"`{file}` must hold the scores of fairseq-validate --task glue or of mtmoe evaluate, "
            "but has other content."
        ) from error
    checkpoint = str(scores.settings.get("checkpoint", ""))
    return replace(scores, folders=(str(file.parent),), checkpoints=(checkpoint,))


def _logged(folder: Path, name: str) -> Any:
    """Return a field of a run log's start; None if it is missing or unreadable."""
    try:
        starts = of_kind(run_log.read(folder / run_log.FILE_NAME), "run")
    except UserError:
        return None
    return next(iter(starts), {}).get(name)
