"""The table of tasks: a row says what a task is, where its files are and what stands in them (`rows.py`).

The package's rows are in `tasks.yaml`; a user's own file of the same form adds rows, or replaces them.
"""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.nlu.rows import (
    BY_LABEL,
    QUESTIONS,
    Form,
    Format,
    Kind,
    Source,
    Submission,
    TaskRow,
    TextForm,
    Words,
)
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.yaml_files import read_mapping, structured

__all__ = [
    "BY_LABEL",
    "FORM_FIELD",
    "QUESTIONS",
    "SPLITS",
    "Form",
    "Format",
    "Kind",
    "Source",
    "Submission",
    "TaskRow",
    "TextForm",
    "Words",
    "chosen_rows",
    "load_tables",
]

OWN = Path(__file__).with_name("tasks.yaml")
NAME = re.compile(r"[A-Za-z0-9_-]+")
FORM_FIELD = re.compile(r"\{([^{}]+)\}")  # some files have names of several words
ENTITY_LABEL = re.compile(r"[BI]-.+")
MAX_STEPS = 10_000  # of a regression's answers in text
SPLITS = ("train", "valid", "test")


def load_tables(paths: Sequence[Path] = ()) -> dict[str, TaskRow]:
    """The rows of the package, and of a user's own tables, by their names; a later row replaces an earlier one.

    Raises:
        UserError: a file is no table, or a row is wrong; the sentence says which and why.
    """
    rows = dict(_own_rows())
    for path in paths:
        rows |= _rows_of(path, rows)
    for benchmark in _benchmarks(rows):
        if benchmark in rows:
            raise UserError(f"`{benchmark}` must be a task or a benchmark in the tables of tasks, but is both.")
    return rows


@cache
def _own_rows() -> dict[str, TaskRow]:
    return _rows_of(OWN, {})


def _rows_of(path: Path, before: Mapping[str, TaskRow]) -> dict[str, TaskRow]:
    content = read_mapping(path, "a table of tasks", "names, and their fields below them")
    rows: dict[str, TaskRow] = {}
    for name, fields in content.items():
        rows[name] = _row(path, name, fields, {**before, **rows})
    for name, row in rows.items():
        _check_head(f"{path}: {name}", row, {**before, **rows})
    return rows


def chosen_rows(rows: Mapping[str, TaskRow], names: Sequence[str]) -> dict[str, TaskRow]:
    """The rows of these names, in their order; the name of a benchmark stands for its tasks.

    Raises:
        UserError: a name is unknown, a task comes twice, or has no training data.
    """
    benchmarks = _benchmarks(rows)
    chosen: list[str] = []
    for name in names:
        if name not in rows and name not in benchmarks:
            raise_invalid("--glue-tasks", f"among {', '.join([*benchmarks, *rows])}", name)
        chosen += benchmarks.get(name, [name])
    if len(set(chosen)) < len(chosen):
        raise_invalid("--glue-tasks", "different tasks", ",".join(names))
    for name in chosen:
        if not rows[name].sets("train"):
            raise_invalid(
                "--glue-tasks", f"tasks with training data; the head of {rows[name].head} predicts this one", name
            )
    return {name: rows[name] for name in chosen}


def _benchmarks(rows: Mapping[str, TaskRow]) -> dict[str, list[str]]:
    """The tasks of each benchmark."""
    benchmarks: dict[str, list[str]] = {}
    for task, row in rows.items():
        for benchmark in row.benchmarks:
            benchmarks.setdefault(benchmark, []).append(task)
    return benchmarks


def _row(path: Path, name: str, given: Any, known: Mapping[str, TaskRow]) -> TaskRow:
    where = f"{path}: {name}"
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise_invalid(where, "a name of letters, digits, `_` and `-`", name)
    is_like = isinstance(given, dict) and "like" in given
    if not isinstance(given, dict) or not isinstance(given.get("splits", {} if is_like else None), dict):
        raise_invalid(where, "the fields of a task, among them `splits`", given)
    fields = {key: value for key, value in given.items() if key not in ("splits", "submissions", "like")}
    splits, submissions = given.get("splits", {}), given.get("submissions", {})
    row = structured(TaskRow, where, fields, _other(where, given["like"], splits, known) if is_like else None)
    for split, sources in splits.items():
        if str(split).partition("/")[0] not in SPLITS or not isinstance(sources, list) or not sources:
            raise_invalid(
                f"{where}: splits", f"{', '.join(SPLITS)}, or one of them with `/` and a name, with files", split
            )
        row.splits[split] = [structured(Source, f"{where}: {split}", source) for source in sources]
    for split, read in row.splits.items():
        for source in read:
            _check_source(f"{where}: {split}", source)
            if (source.format in QUESTIONS) != (row.kind is Kind.span):
                raise_invalid(
                    f"{where}: {split}: format", "squad or mrqa for a span, and only there", source.format.name
                )
            if source.format is Format.conll and row.kind is not Kind.word_labels:
                raise_invalid(f"{where}: {split}: format", "another one where words have no labels", source.format.name)
    _check(where, row)
    if not isinstance(submissions, dict) or not set(submissions) <= set(row.sets("test")):
        found = ", ".join(row.sets("test")) or "there are none"
        raise_invalid(f"{where}: submissions", f"for sets of the test data ({found})", submissions)
    for split, submission in submissions.items():
        row.submissions[split] = structured(Submission, f"{where}: submissions", submission)
    for split in row.submissions:
        _check_submission(f"{where}: submissions", row, split)
    return row


def _other(where: str, name: Any, splits: Mapping[str, Any], known: Mapping[str, TaskRow]) -> TaskRow:
    """The row that another one begins as, without the submissions of sets whose files it gives anew."""
    if not isinstance(name, str) or name not in known:
        raise_invalid(f"{where}: like", f"a task that is known ({', '.join(known)})", name)
    row = deepcopy(known[name])
    row.submissions = {split: one for split, one in row.submissions.items() if split not in splits}
    return row


def _check(where: str, row: TaskRow) -> None:
    if not 1 <= len(row.texts) <= 2:
        raise_invalid(f"{where}: texts", "one text or two", row.texts)
    if row.kind is Kind.regression:
        if len(row.bounds) != 2 or not -math.inf < row.bounds[0] < row.bounds[1] < math.inf:
            raise_invalid(f"{where}: bounds", "the least and the greatest value of a regression", row.bounds)
    elif row.kind is Kind.span:
        _check_span(where, row)
    elif (not row.is_open and len(set(row.labels)) < 2) or len(set(row.labels)) < len(row.labels):
        raise_invalid(f"{where}: labels", "two or more different ones", row.labels)
    if row.kind is Kind.word_labels:
        _check_word_labels(where, row)
    if (row.kind is Kind.ranking) != bool(row.choices):
        raise_invalid(f"{where}: choices", "fields in a ranking, and only there", row.choices)
    if row.is_open and len(row.choices) != 1:
        raise_invalid(
            f"{where}: choices", "one field that lists the candidates, where a ranking has no labels", row.choices
        )
    if row.kind is Kind.ranking and row.labels and len(row.choices) != len(row.labels):
        raise_invalid(f"{where}: choices", f"as many as labels, {len(row.labels)}", row.choices)
    if row.names and not row.is_open:
        raise_invalid(f"{where}: names", "a field of a ranking without labels, and of no other task", row.names)
    if row.text_form is not None:
        _check_text_form(f"{where}: text_form", row, row.text_form)
    if row.max_positions is not None and row.max_positions < 8:
        raise_invalid(f"{where}: max_positions", "a number of tokens, at least 8", row.max_positions)
    if any(not 0 <= words.text < len(row.texts) for words in row.words):
        raise_invalid(
            f"{where}: words", f"in one of the {len(row.texts)} texts, from 0", [one.text for one in row.words]
        )
    if len(row.words) != (2 if row.kind is Kind.word_pair else 0):
        raise_invalid(f"{where}: words", "two in a word pair, and none elsewhere", len(row.words))


def _check_span(where: str, row: TaskRow) -> None:
    if len(row.texts) != 2 or row.labels:
        raise_invalid(f"{where}: texts", "the question and the passage of a span, which has no labels", row.texts)
    for name in ("stride", "longest_answer"):
        if getattr(row, name) is not None and getattr(row, name) < 1:
            raise_invalid(f"{where}: {name}", "a number of tokens, at least 1", getattr(row, name))


def _check_text_form(where: str, row: TaskRow, form: TextForm) -> None:
    if row.kind is Kind.word_labels:
        raise_invalid(where, "absent where words have labels, which no text says", form.reads)
    if not FORM_FIELD.search(form.reads):
        raise_invalid(f"{where}: reads", "a text with fields of the files in braces", form.reads)
    if form.writes and (len(form.writes) != len(row.labels) or len(set(form.writes)) < len(form.writes)):
        raise_invalid(f"{where}: writes", f"as many different texts as labels, {len(row.labels)}", form.writes)
    if form.referent and (len(row.labels) != 2 or form.writes):
        raise_invalid(f"{where}: referent", "of a task with two labels, of which nothing is written", form.referent)
    if not 0 < form.step < math.inf:
        raise_invalid(f"{where}: step", "above 0", form.step)
    if row.kind is Kind.regression and (row.bounds[1] - row.bounds[0]) / form.step > MAX_STEPS:
        raise_invalid(f"{where}: step", f"one that divides the bounds into at most {MAX_STEPS:,} numbers", form.step)


def _check_word_labels(where: str, row: TaskRow) -> None:
    if len(row.texts) != 1:
        raise_invalid(f"{where}: texts", "the field with the words, where each has a label", row.texts)
    wrong = [label for label in row.labels[1:] if not ENTITY_LABEL.fullmatch(label)]
    if row.labels[0] != "O" or wrong:
        raise_invalid(f"{where}: labels", "O, and then B- and I- with an entity's type", (wrong or row.labels)[0])


def _check_source(where: str, source: Source) -> None:
    try:
        codecs.lookup(source.encoding)
    except LookupError:
        raise_invalid(f"{where}: encoding", "one that Python knows", source.encoding)
    if source.part and (len(source.part) != 2 or not 0 <= source.part[0] < source.part[1] <= 1):
        raise_invalid(f"{where}: part", "two shares from 0 to 1, from and to", source.part)
    if source.part_seed is not None and (not source.part or source.part_seed < 0):
        raise_invalid(f"{where}: part_seed", "at least 0, and only beside a part", source.part_seed)
    if source.format is Format.conll and not source.columns:
        raise_invalid(
            f"{where}: columns", "the fields of a line, the word's and the label's among them", source.columns
        )
    if (source.keep_ids or source.leave_ids) and not source.ids:
        raise_invalid(f"{where}: ids", "the fields that an id consists of, where examples are chosen by id", source.ids)
    if Path(source.file).is_absolute() and source.format in BY_LABEL:
        raise_invalid(f"{where}: file", "below the data directory where there is one for each label", source.file)
    if ("{label}" in source.file) != (source.format in BY_LABEL):
        raise_invalid(
            f"{where}: file", "with {label} in it where there is one for each label, and only there", source.file
        )


def _check_submission(where: str, row: TaskRow, split: str) -> None:
    submission: Submission = row.submissions[split]
    if Path(submission.file).name != submission.file:
        raise_invalid(f"{where}: file", "a file's name", submission.file)
    if submission.labels and len(submission.labels) != len(row.labels):
        raise_invalid(f"{where}: labels", f"as many as the task's, {len(row.labels)}", submission.labels)
    if (submission.form is Form.conll) != (row.kind is Kind.word_labels):
        raise_invalid(f"{where}: form", "conll where words have labels, and only there", submission.form.name)
    if submission.form is Form.multirc and any(source.format is not Format.multirc for source in row.splits[split]):
        raise_invalid(
            f"{where}: form", "one that names an example by a single key, where the files are not MultiRC's", "multirc"
        )
    if (submission.form is Form.squad) != (row.kind is Kind.span):
        raise_invalid(f"{where}: form", "squad for a span, and only there", submission.form.name)


def _check_head(where: str, row: TaskRow, rows: Mapping[str, TaskRow]) -> None:
    def shape(row: TaskRow) -> tuple[Kind, int]:
        return row.kind, 1 if row.kind is Kind.ranking else len(row.labels)

    if row.head and (row.head not in rows or shape(rows[row.head]) != shape(row)):
        raise_invalid(f"{where}: head", "another task of the same kind with as many labels", row.head)
    if not row.head and not row.sets("train"):
        raise_invalid(f"{where}: head", "the task whose head predicts this one, which has no training data", row.head)
