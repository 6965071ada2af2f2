"""A study as it is registered: `studies/NAME.yaml`, read and checked, and the record that it has not changed since.

The file is committed before the study's first run. `studies/registered.csv` has a line for each form that it had when
runs began: the first, and those that an amendment with its reason made. `studies/abandoned.csv` has the runs that were
given up, or cannot be made again, and why.
"""

from __future__ import annotations

import csv
import hashlib
import json
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from fairseq_mtmoe.core.errors import UserError, first_line

STUDIES = Path(__file__).resolve().parent / "studies"
REGISTERED = STUDIES / "registered.csv"
ABANDONED = STUDIES / "abandoned.csv"


@dataclass
class Row:
    """One system of a study, which differs from its control in one thing."""

    title: str = MISSING  # for tables
    options: str = ""  # of `fairseq-train`, after the study's own, which they replace
    score: str = ""  # options of `mtmoe evaluate`, after the study's own
    like: str = ""  # another row, whose options come before these
    rate: str = ""  # whose sweep of learning rates gives this row's: a row that the study's `rates` name
    branch: str = ""  # the row from whose checkpoint of the same seed this one goes on; empty for one from scratch
    updates: int = 0  # after which that checkpoint was saved
    each: list[str] = field(default_factory=list)  # tasks or pairs with a run each; empty where all are in one run
    steps: dict[str, int] = field(default_factory=dict)  # updates of a task's run, where not as many as the study's
    untrained: bool = False  # the model of `--pretrained` as it is, which has no run and one seed
    seed: int = 0  # with which alone it is trained, where runs of all seeds begin with it; 0 for all seeds
    own_data: bool = False  # of another DATA or of a later stage: runs only where `--rows` names it


@dataclass
class Contrast:
    """A difference that a study is about: a row less its control, in the mean over a group's pairs.

    Without `metric` it is of the study's own.
    """

    row: str = MISSING
    control: str = MISSING
    group: str = "all"
    metric: str = ""
    primary: bool = False


@dataclass
class Rates:
    """The sweep of learning rates before the study: every value with each row, by validation perplexity or score."""

    values: list[str] = field(default_factory=list)
    rows: list[str] = field(default_factory=list)
    updates: int = 0
    seed: int = 0


@dataclass
class Entry:
    """What a row must reach before the study says anything about translation."""

    row: str = "dense"
    bleu: float = 15.0  # the least mean over all pairs
    shuffled: float = 2.0  # how many times as high perplexity must be where sentences get each other's sources
    source_free: float = 0.5  # the largest share of the source-free trigram model's perplexity


@dataclass
class Study:
    """All of `studies/NAME.yaml`; what it says in words is `question`, `text`, `rule` and `kill`.

    A study with `tasks` is of a benchmark's tasks: its runs are scored by `fairseq-validate` with the options `score`
    after their last update, and are no means of checkpoints. `groups` of tasks, or of language pairs, have means of
    their own. In options `{task}` stands for a run's tasks or its pair, `{seed}` and `{updates}` for its own, `{runs}`
    for the folder of the study's runs, and `{pretrained}` for `--pretrained`.
    """

    question: str = MISSING
    text: str = MISSING
    rule: str = MISSING
    kill: str = MISSING
    metric: str = "bleu"
    tasks: list[str] = field(default_factory=list)
    groups: dict[str, list[str]] = field(default_factory=dict)  # further means than that over all tasks
    strata: list[str] = field(default_factory=list)  # parts of the names of rows that share an error
    prepare: str = MISSING
    updates: int = MISSING
    averaged: int = 5
    options: str = MISSING
    score: str = ""
    further: list[str] = field(default_factory=list)  # test sets of DATA-NAME, scored too
    seeds: list[int] = field(default_factory=list)
    more_seeds: list[int] = field(default_factory=list)
    entry: Entry | None = None  # of studies of translators that begin with nothing
    rates: Rates = field(default_factory=Rates)
    rows: dict[str, Row] = field(default_factory=dict)
    contrasts: list[Contrast] = field(default_factory=list)

    def options_of(self, name: str) -> list[str]:
        """A row's options of `fairseq-train`, the study's first; of an option given twice the last one counts."""
        row = self.rows[name]
        before = self.options_of(row.like) if row.like else shlex.split(self.options)
        return [*before, *shlex.split(row.options)]

    def runs_of(self, row: str, seed: int) -> dict[str, str]:
        """The folders of a row's runs with a seed, by task: one with an empty task, or one for each task."""
        what = self.rows[row]
        return {task: "-".join(filter(None, (row, task, str(what.seed or seed)))) for task in what.each or [""]}

    def updates_of(self, row: str, task: str) -> int:
        return self.rows[row].steps.get(task, self.updates)


def load(path: Path) -> Study:
    """Read a study.

    Raises:
        UserError: there is no such file, or it names a field or a row that there is not.
    """
    if not path.exists():
        known = ", ".join(sorted(one.stem for one in path.parent.glob("*.yaml")))
        raise UserError(f"`study` must be one of {known or 'none yet'}, but is {path.stem} instead.")
    try:
        study: Study = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Study), OmegaConf.load(path)))
    except (OmegaConfBaseException, YAMLError) as error:
        raise UserError(f"`{path.name}` must be a study, but is wrong: {first_line(error)}.") from error
    named = [name for row in study.rows.values() for name in (row.like, row.branch, row.rate) if name]
    named += [name for one in study.contrasts for name in (one.row, one.control)]
    named += [*study.rates.rows, *([study.entry.row] if study.entry else [])]
    if unknown := [name for name in named if name not in study.rows]:
        raise UserError(f"`{path.name}` must name none but its own rows, but names {unknown[0]}.")
    return study


def digest(path: Path) -> str:
    """A study's SHA-256: of what the file says, whatever its comments and spaces."""
    content = OmegaConf.to_container(OmegaConf.load(path))
    return hashlib.sha256(json.dumps(content, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def register(path: Path, amend: str = "", record: Path = REGISTERED) -> None:
    """See that a study is what it was at its first run, which this is if there was none.

    Args:
        path: the study.
        amend: the reason for which it has changed, to record; empty if it has not.
        record: the table of all studies' forms.

    Raises:
        UserError: it has changed and there is no reason.
    """
    known = [line for line in read_table(record) if line["study"] == path.stem]
    now = digest(path)
    if known and known[-1]["sha256"] == now:
        return
    if known and not amend:
        raise UserError(
            f"`{path.name}` must be as it was when its runs began on {known[0]['date']}, but has changed since: "
            "take the change back, or give the reason for it as `--amend REASON`."
        )
    with open(record, "a", encoding="utf-8", newline="") as file:
        line = (path.stem, now, datetime.now(UTC).date().isoformat(), amend or "first run")
        csv.writer(file, lineterminator="\n").writerow(line)


def amendments(study: str, record: Path = REGISTERED) -> list[str]:
    """When and why a study has changed since its first run."""
    return [f"{line['date']}: {line['reason']}" for line in read_table(record) if line["study"] == study][1:]


def abandoned(study: str) -> list[str]:
    """Return which runs of a study were given up, when and why."""
    lines = [line for line in read_table(ABANDONED) if line["study"] == study]
    return [f"{line['runs']}, {line['started']} to {line['ended']}: {line['why']}" for line in lines]


def read_table(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
