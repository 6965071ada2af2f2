"""The table of tasks: a row says what a task is, where its files are and what stands in them.

The package's rows are in `tasks.yaml`; a user's own file of the same form adds rows, or replaces them.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Optional, TypeVar

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fairseq_mtmoe.errors import UserError, first_line, must_be
from fairseq_mtmoe.io.files import regular_file

Fields = TypeVar("Fields")

OWN = Path(__file__).with_name("tasks.yaml")
NAME = re.compile(r"[A-Za-z0-9_-]+")
ENTITY_LABEL = re.compile(r"[BI]-.+")
SPLITS = ("train", "valid", "test")


class Kind(Enum):
    """What is asked of an example, which decides head and loss."""

    classification = "one of several labels"
    regression = "a number"
    ranking = "which of several candidates is right"
    word_pair = "one of several labels, about two words of the text"
    span = "the words of a passage that answer a question"
    word_labels = "one of several labels for each word, such as where a name begins and goes on"


class Format(Enum):
    """How a file is read; see `formats`."""

    tsv = "fields between tabs, quotes are text"
    csv = "fields between commas, in quotes where they need them"
    jsonl = "an object in each line"
    multirc = "MultiRC's: a passage in each line, with questions, with answers"
    record = "ReCoRD's: a passage in each line, with its entities and with queries, of which each is an example"
    wsc = "SuperGLUE's Winograd schemas: a text in each line, with two words by their number"
    squad = "SQuAD's: articles of paragraphs with questions, with answers, in one object"
    mrqa = "MRQA's: a passage in each line, with questions, with answers"
    conll = "CoNLL's: a word in each line with fields of its own, an empty line after each sentence"
    lines_by_label = "a file for each label, a text in each line"
    files_by_label = "a folder for each label, a text in each file"


BY_LABEL = (Format.lines_by_label, Format.files_by_label)
QUESTIONS = (Format.squad, Format.mrqa)  # about passages, with the places of their answers


class Form(Enum):
    """What a file of predictions looks like; see `submissions`."""

    tsv = "key and label of an example in each line, below a header"
    jsonl = "an object with `idx` and `label` in each line"
    multirc = "MultiRC's: a passage in each line, with questions, with answers"
    squad = "SQuAD's and MRQA's: an object with the text that answers each question, by its key"
    conll = "a word and its label in each line, an empty line after each sentence"


@dataclass
class Words:
    """Where one of the words stands that a task is about: fields with the places of its characters in a text."""

    text: int = MISSING
    start: str = MISSING
    end: str = MISSING


@dataclass
class Source:
    """One form in which a split is distributed.

    Attributes:
        file: below the data directory; in `lines_by_label` and `files_by_label` with `{label}` in it. One whose name
            ends in `.gz` is read through gzip.
        format: how it is read.
        columns: the fields' names where the file does not begin with them; in `conll` the last may be missing
            throughout a file, as labels are in test data.
        encoding: of the file.
        keep_ids: a file of ids, one or more of `ids` in each line: only these examples are of the split.
        leave_ids: the same, of examples that are not.
        ids: the fields that an id consists of.
        part: the share of each label's examples that is of the split: from, to.
        count: how many examples the authors' file has.
    """

    file: str = MISSING
    format: Format = Format.tsv
    columns: list[str] = field(default_factory=list)
    encoding: str = "utf-8-sig"
    keep_ids: str = ""
    leave_ids: str = ""
    ids: list[str] = field(default_factory=list)
    part: list[float] = field(default_factory=list)
    count: int = 0


@dataclass
class Submission:
    """The file of predictions that a benchmark's server takes for a set.

    Attributes:
        file: its name.
        form: what it looks like.
        labels: as the server has them, in the order of the classes; by default as the task's files have them.
    """

    file: str = MISSING
    form: Form = Form.tsv
    labels: list[Any] = field(default_factory=list)


@dataclass
class TextForm:
    """How a task is put to a model that reads and writes text; T5's forms are in appendix D of its paper.

    Attributes:
        reads: what it reads: a text with fields of the files in braces, of which one that lists texts is joined by
            commas.
        writes: what it writes for each label; by default the labels as the files have them. Questions about passages
            and rankings without labels are answered by a text, regressions by a number.
        referent: a field: it writes that field's text where it is of the label 1, and is trained on these examples
            alone; whatever it writes in validation is of the label 1 where both name the same, and else 0.
        step: of a regression: between the values that it writes.
    """

    reads: str = MISSING
    writes: list[str] = field(default_factory=list)
    referent: str = ""
    step: float = 0.2


@dataclass
class TaskRow:
    """A task.

    Attributes:
        title: its name in tables.
        benchmarks: names of sets of tasks that it belongs to, by which they are chosen together.
        group: of tasks that have an average, shown where those of several groups are scored.
        description: what it asks, in a sentence.
        prompt: the same as a paper has it, with which a trained prompt begins; by default the description.
        text_form: how it is asked in text and answered in text; without one it cannot be.
        kind: what kind of answer it wants.
        texts: what the encoder reads, one or two: a field's name, or a text with fields in braces; of word labels the
            field that lists the words.
        choices: of a ranking: fields that come after `texts`, one in each candidate; or, where there are no labels, a
            single field that lists any number of texts, one of each candidate.
        names: of a ranking without labels: the field that lists what predictions call the candidates; by default the
            texts of `choices`.
        words: of a word pair: where the two stand.
        stride: of a span: how many tokens of a passage lie between the beginnings of two windows, if it is too long for
            one; at most half of what fits into one (see `windows`), and by default at most BERT's 128.
        longest_answer: of a span: the most tokens that a predicted answer has.
        say: for fields whose values are replaced by others: for each value the other.
        label: the field with the label; of a ranking without labels it lists the numbers of the right candidates, one
            or more, from 0.
        labels: the labels as the files have them, in the order of the classes; of words first O, then those that say
            by B- and I- where an entity of a type begins and goes on.
        ignore: labels of examples that are left out.
        bounds: of a regression: the least and the greatest value.
        key: the field by which a submission names an example; by default its number.
        metric: as in `fairseq_mtmoe.tasks._benchmark.metrics`; averages are of this one.
        also: metrics that are reported beside it.
        small: it counts among the benchmark's small tasks (at most 10,000 training examples).
        skip_ragged: lines with another number of fields are left out and counted, because the authors' file has some.
        splits: for `train`, `valid`, `test`, and further sets such as `valid/mismatched`, the forms in which they are
            distributed: the first that is there is read.
        submissions: for sets of `test` that a benchmark's server scores, the files that it takes.
        head: the task whose head predicts this one where a model has none for it, such as one without training data.
    """

    title: str = MISSING
    benchmarks: list[str] = field(default_factory=list)
    group: str = ""
    description: str = MISSING
    prompt: str = ""
    text_form: TextForm | None = None
    kind: Kind = MISSING
    texts: list[str] = MISSING
    choices: list[str] = field(default_factory=list)
    names: str = ""
    words: list[Words] = field(default_factory=list)
    stride: Optional[int] = None  # noqa: UP045 (OmegaConf reads it)
    longest_answer: int = 30
    say: dict[str, dict[str, str]] = field(default_factory=dict)
    label: str = "label"
    labels: list[str] = field(default_factory=list)
    ignore: list[str] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    key: str = ""
    metric: str = "accuracy"
    also: list[str] = field(default_factory=list)
    small: bool = False
    skip_ragged: bool = False
    splits: dict[str, Any] = field(default_factory=dict)  # lists of `Source`, which OmegaConf cannot nest so
    submissions: dict[str, Any] = field(default_factory=dict)  # of `Submission`
    head: str = ""

    @property
    def is_open(self) -> bool:
        """Whether it is a ranking of any number of candidates, which have no labels in common."""
        return self.kind is Kind.ranking and not self.labels

    def sets(self, split: str) -> list[str]:
        """The names of a split's sets: itself, and those that begin with its name."""
        return [name for name in self.splits if name.partition("/")[0] == split]


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
    rows = {name: _row(path, name, fields) for name, fields in _mapping(path).items()}
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
            must_be("--glue-tasks", f"among {', '.join([*benchmarks, *rows])}", name)
        chosen += benchmarks.get(name, [name])
    if len(set(chosen)) < len(chosen):
        must_be("--glue-tasks", "different tasks", ",".join(names))
    for name in chosen:
        if not rows[name].sets("train"):
            must_be("--glue-tasks", f"tasks with training data; the head of {rows[name].head} predicts this one", name)
    return {name: rows[name] for name in chosen}


def _benchmarks(rows: Mapping[str, TaskRow]) -> dict[str, list[str]]:
    """The tasks of each benchmark."""
    benchmarks: dict[str, list[str]] = {}
    for task, row in rows.items():
        for benchmark in row.benchmarks:
            benchmarks.setdefault(benchmark, []).append(task)
    return benchmarks


def _mapping(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(regular_file(path, "a table of tasks").read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"`{path}` must be a table of tasks in YAML, but cannot be read: {_flat(error)}.") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        must_be(str(path), "a table of tasks: names, and their fields below them", type(content).__name__)
    return content


def _row(path: Path, name: str, fields: Any) -> TaskRow:
    where = f"{path}: {name}"
    if not NAME.fullmatch(name):
        must_be(where, "a name of letters, digits, `_` and `-`", name)
    if not isinstance(fields, dict) or not isinstance(fields.get("splits"), dict):
        must_be(where, "the fields of a task, among them `splits`", fields)
    splits, submissions = fields.pop("splits"), fields.pop("submissions", {})
    row = _structured(TaskRow, where, fields)
    for split, sources in splits.items():
        if str(split).partition("/")[0] not in SPLITS or not isinstance(sources, list) or not sources:
            must_be(f"{where}: splits", f"{', '.join(SPLITS)}, or one of them with `/` and a name, with files", split)
        row.splits[split] = [_structured(Source, f"{where}: {split}", source) for source in sources]
        for source in row.splits[split]:
            _check_source(f"{where}: {split}", source)
            if (source.format in QUESTIONS) != (row.kind is Kind.span):
                must_be(f"{where}: {split}: format", "squad or mrqa for a span, and only there", source.format.name)
            if source.format is Format.conll and row.kind is not Kind.word_labels:
                must_be(f"{where}: {split}: format", "another one where words have no labels", source.format.name)
    _check(where, row)
    if not isinstance(submissions, dict) or not set(submissions) <= set(row.sets("test")):
        known = ", ".join(row.sets("test")) or "there are none"
        must_be(f"{where}: submissions", f"for sets of the test data ({known})", submissions)
    for split, submission in submissions.items():
        row.submissions[split] = _structured(Submission, f"{where}: submissions", submission)
        _check_submission(f"{where}: submissions", row, split)
    return row


def _structured(form: type[Fields], where: str, fields: Any) -> Fields:
    """The dataclass with these fields, each of the type that it must have."""
    if not isinstance(fields, dict):
        must_be(where, "fields and their values", fields)
    try:
        made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(form), fields))
    except OmegaConfBaseException as error:
        raise UserError(f"`{where}` must be fields of a task, but {first_line(error)}.") from error
    assert isinstance(made, form)
    return made


def _check(where: str, row: TaskRow) -> None:
    if not 1 <= len(row.texts) <= 2:
        must_be(f"{where}: texts", "one text or two", row.texts)
    if row.kind is Kind.regression:
        if len(row.bounds) != 2 or row.bounds[0] >= row.bounds[1]:
            must_be(f"{where}: bounds", "the least and the greatest value of a regression", row.bounds)
    elif row.kind is Kind.span:
        _check_span(where, row)
    elif (not row.is_open and len(set(row.labels)) < 2) or len(set(row.labels)) < len(row.labels):
        must_be(f"{where}: labels", "two or more different ones", row.labels)
    if row.kind is Kind.word_labels:
        _check_word_labels(where, row)
    if (row.kind is Kind.ranking) != bool(row.choices):
        must_be(f"{where}: choices", "fields in a ranking, and only there", row.choices)
    if row.is_open and len(row.choices) != 1:
        must_be(f"{where}: choices", "one field that lists the candidates, where a ranking has no labels", row.choices)
    if row.kind is Kind.ranking and row.labels and len(row.choices) != len(row.labels):
        must_be(f"{where}: choices", f"as many as labels, {len(row.labels)}", row.choices)
    if row.names and not row.is_open:
        must_be(f"{where}: names", "a field of a ranking without labels, and of no other task", row.names)
    if len(row.words) != (2 if row.kind is Kind.word_pair else 0):
        must_be(f"{where}: words", "two in a word pair, and none elsewhere", len(row.words))


def _check_span(where: str, row: TaskRow) -> None:
    if len(row.texts) != 2 or row.labels:
        must_be(f"{where}: texts", "the question and the passage of a span, which has no labels", row.texts)
    for name in ("stride", "longest_answer"):
        if getattr(row, name) is not None and getattr(row, name) < 1:
            must_be(f"{where}: {name}", "a number of tokens, at least 1", getattr(row, name))


def _check_word_labels(where: str, row: TaskRow) -> None:
    if len(row.texts) != 1:
        must_be(f"{where}: texts", "the field with the words, where each has a label", row.texts)
    wrong = [label for label in row.labels[1:] if not ENTITY_LABEL.fullmatch(label)]
    if row.labels[0] != "O" or wrong:
        must_be(f"{where}: labels", "O, and then B- and I- with an entity's type", (wrong or row.labels)[0])


def _check_source(where: str, source: Source) -> None:
    try:
        codecs.lookup(source.encoding)
    except LookupError:
        must_be(f"{where}: encoding", "one that Python knows", source.encoding)
    if source.part and (len(source.part) != 2 or not 0 <= source.part[0] < source.part[1] <= 1):
        must_be(f"{where}: part", "two shares from 0 to 1, from and to", source.part)
    if source.format is Format.conll and not source.columns:
        must_be(f"{where}: columns", "the fields of a line, the word's and the label's among them", source.columns)
    if (source.keep_ids or source.leave_ids) and not source.ids:
        must_be(f"{where}: ids", "the fields that an id consists of, where examples are chosen by id", source.ids)
    if ("{label}" in source.file) != (source.format in BY_LABEL):
        must_be(f"{where}: file", "with {label} in it where there is one for each label, and only there", source.file)


def _check_submission(where: str, row: TaskRow, split: str) -> None:
    submission: Submission = row.submissions[split]
    if Path(submission.file).name != submission.file:
        must_be(f"{where}: file", "a file's name", submission.file)
    if submission.labels and len(submission.labels) != len(row.labels):
        must_be(f"{where}: labels", f"as many as the task's, {len(row.labels)}", submission.labels)
    if (submission.form is Form.conll) != (row.kind is Kind.word_labels):
        must_be(f"{where}: form", "conll where words have labels, and only there", submission.form.name)
    if submission.form is Form.multirc and any(source.format is not Format.multirc for source in row.splits[split]):
        must_be(
            f"{where}: form", "one that names an example by a single key, where the files are not MultiRC's", "multirc"
        )
    if (submission.form is Form.squad) != (row.kind is Kind.span):
        must_be(f"{where}: form", "squad for a span, and only there", submission.form.name)


def _check_head(where: str, row: TaskRow, rows: Mapping[str, TaskRow]) -> None:
    def shape(row: TaskRow) -> tuple[Kind, int]:
        return row.kind, 1 if row.kind is Kind.ranking else len(row.labels)

    if row.head and (row.head not in rows or shape(rows[row.head]) != shape(row)):
        must_be(f"{where}: head", "another task of the same kind with as many labels", row.head)
    if not row.head and not row.sets("train"):
        must_be(f"{where}: head", "the task whose head predicts this one, which has no training data", row.head)


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split())
