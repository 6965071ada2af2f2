"""The task table: each row describes a task and its files.

The form is in docs/reference/task_table.md. The package's rows are in `tasks.yaml`; a user's file
in the same form adds or replaces rows.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from fairseq_mtmoe.core.errors import raise_invalid, shortened
from fairseq_mtmoe.core.typed import Rule, at_least, structured
from fairseq_mtmoe.core.yaml_files import read_mapping

OWN = Path(__file__).with_name("tasks.yaml")
FORM_FIELD = re.compile(r"\{([^{}]+)\}")  # some files have field names of several words
ENTITY_LABEL = re.compile(r"[BI]-.+")
SPLITS = ("train", "valid", "test")
OF_ALL = ("loss", "small", "all")  # names of figures over several tasks
# The configuration of pydantic: labels may be numbers.
_CHECKED = {"extra": "forbid", "coerce_numbers_to_str": True}

# Rules of single fields
TaskName = Annotated[
    str,
    Rule(
        f"a table of names of letters, digits, `_` and `-`, without {', '.join(OF_ALL)}",
        lambda name: re.fullmatch("[A-Za-z0-9_-]+", name) and name not in OF_ALL,
    ),
]
SetName = Annotated[
    str,
    Rule(
        f"{', '.join(SPLITS)}, or one of them with `/` and a name",
        lambda name: name.partition("/")[0] in SPLITS,
    ),
]
PART = Rule(
    "two shares from 0 to 1, start and end",
    lambda part: not part or (len(part) == 2 and 0 <= part[0] < part[1] <= 1),
)
STEP = Rule("a number above 0", lambda step: 0 < step < math.inf)

# A rule of several fields: whether it holds, the wrong field, its text, and the value if it is not
# the field's.
RowRule = tuple[bool, str, str] | tuple[bool, str, str, object]


class Kind(Enum):
    """Kind of a task, which determines head and loss."""

    classification = "classification"  # one of several labels
    regression = "regression"  # a number
    ranking = "ranking"  # which of several candidates is right
    word_pair = "word_pair"  # one of several labels, about two words of the text
    span = "span"  # the words of a passage that answer a question
    # One of several labels for each word, such as where a name begins and goes on.
    word_labels = "word_labels"


class Format(Enum):
    """Format of a data file; see `formats`."""

    tsv = "tsv"  # fields between tabs, quotes are text
    csv = "csv"  # fields between commas, in quotes where they need them
    jsonl = "jsonl"  # an object in each line
    multirc = "multirc"  # MultiRC's: a passage in each line, with questions, with answers
    # ReCoRD's: a passage in each line, with entities and queries; each query is an example.
    record = "record"
    wsc = "wsc"  # SuperGLUE's Winograd schemas: a text in each line, with two words by their number
    squad = "squad"  # SQuAD's: articles of paragraphs with questions, with answers, in one object
    mrqa = "mrqa"  # MRQA's: a passage in each line, with questions, with answers
    # CoNLL's: a word in each line with its fields, an empty line after each sentence.
    conll = "conll"
    lines_by_label = "lines_by_label"  # a file for each label, a text in each line
    files_by_label = "files_by_label"  # a folder for each label, a text in each file


BY_LABEL = (Format.lines_by_label, Format.files_by_label)
QUESTIONS = (Format.squad, Format.mrqa)  # about passages, with the offsets of their answers


class Form(Enum):
    """Format of a file of predictions; see `answers`."""

    tsv = "tsv"  # key and label of an example in each line, below a header
    jsonl = "jsonl"  # an object with `idx` and `label` in each line
    multirc = "multirc"  # MultiRC's: a passage in each line, with questions, with answers
    # SQuAD's and MRQA's: an object with the text that answers each question, by its key.
    squad = "squad"
    conll = "conll"  # a word and its label in each line, an empty line after each sentence


FORMS_OF_KIND = {Kind.span: Form.squad, Kind.word_labels: Form.conll}  # others have several


@dataclass
class Words:
    """A word that a task is about: names of the fields with its offsets in a text."""

    __pydantic_config__: ClassVar = _CHECKED

    text: int
    start: str
    end: str


@dataclass
class Source:
    """Source of a split: a file in one of the forms in which it is distributed."""

    __pydantic_config__: ClassVar = _CHECKED

    file: str
    format: Format = Format.tsv
    columns: list[str] = field(default_factory=list)
    encoding: str = "utf-8-sig"
    keep_ids: str = ""
    leave_ids: str = ""
    ids: list[str] = field(default_factory=list)
    part: Annotated[list[float], PART] = field(default_factory=list)
    part_seed: int | None = None
    count: int = 0

    def rules(self, row: TaskRow) -> Iterator[RowRule]:
        """Yield the rules for the fields."""
        is_named = ("{label}" in self.file) == (self.format in BY_LABEL)
        rule = "a name with {label} in the formats that have a file for each label, and only there"
        yield is_named, "file", rule
        is_asked = (self.format in QUESTIONS) == (row.kind is Kind.span)
        yield is_asked, "format", "squad or mrqa for a span task, and only there"


@dataclass
class Submission:
    """File of a set's predictions for a benchmark's server."""

    __pydantic_config__: ClassVar = _CHECKED

    file: str
    form: Form = Form.tsv
    labels: list[Any] = field(default_factory=list)

    def rules(self, row: TaskRow, split: str) -> Iterator[RowRule]:
        """Yield the rules for the fields."""
        count = len(row.labels)
        yield Path(self.file).name == self.file, "file", "a file name without folders"
        fits = len(self.labels) in (0, count)
        yield fits, "labels", f"as many as the task's, {count}"
        forms = [FORMS_OF_KIND.get(row.kind, Form.tsv)]
        if row.kind not in FORMS_OF_KIND:
            forms.append(Form.jsonl)
        if {source.format for source in row.splits[split]} == {Format.multirc}:
            forms.append(Form.multirc)
        rule = f"one of {', '.join(form.name for form in forms)} for this kind and these files"
        yield self.form in forms, "form", rule


@dataclass
class TextForm:
    """A task as text to text; T5's forms are in appendix D of its paper."""

    __pydantic_config__: ClassVar = _CHECKED

    reads: Annotated[str, Rule("a text with field names in braces", FORM_FIELD.search)]
    writes: list[str] = field(default_factory=list)
    referent: str = ""
    step: Annotated[float, STEP] = 0.2

    def rules(self, row: TaskRow) -> Iterator[RowRule]:
        """Yield the rules for the fields."""
        count = len(row.labels)
        writes = self.writes
        fits = not writes or len(writes) == len(set(writes)) == count
        yield fits, "writes", f"as many different texts as labels, {count}"
        is_pair = not self.referent or (count == 2 and not writes)
        yield is_pair, "referent", "given only for tasks with two labels and without `writes`"


@dataclass(kw_only=True)
class TaskRow:
    """A row of the task table."""

    __pydantic_config__: ClassVar = _CHECKED

    title: str
    benchmarks: list[str] = field(default_factory=list)
    group: str = ""
    description: str
    prompt: str = ""
    text_form: TextForm | None = None
    kind: Kind
    texts: list[str]
    choices: list[str] = field(default_factory=list)
    names: str = ""
    words: list[Words] = field(default_factory=list)
    stride: Annotated[int, at_least(1)] | None = None
    longest_answer: int = 30
    max_positions: int | None = None
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
    splits: dict[SetName, list[Source]] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)
    head: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether this is a ranking of any number of candidates without labels."""
        return self.kind is Kind.ranking and not self.labels

    def sets(self, split: str) -> list[str]:
        """Return the names of a split's sets, such as `valid` and `valid/mismatched`."""
        return [name for name in self.splits if name.partition("/")[0] == split]

    def rules(self) -> Iterator[RowRule]:
        """Yield the rules for the fields."""
        yield self.group not in OF_ALL, "group", f"none of {', '.join(OF_ALL)}, names of averages"
        sets = self.sets("test")
        others = self.submissions.keys() - self.sets("test")
        rule = f"for sets of the test data ({', '.join(sets) or 'there are none'})"
        yield not others, "submissions", rule, sorted(others)
        num_texts = len(self.texts)
        yield 1 <= num_texts <= 2, "texts", "one text or two"
        yield from self._rules_of_kind()
        count = max(len(self.labels), 1) if self.kind is Kind.ranking else 0
        rule = "in a ranking a field for each label, or without labels one that lists candidates"
        yield len(self.choices) == count, "choices", rule
        indices = [word.text for word in self.words]
        is_pair = len(indices) == (2 if self.kind is Kind.word_pair else 0)
        fits = is_pair and set(indices) <= set(range(num_texts))
        yield fits, "words", "two in the texts of a word pair, and none elsewhere", indices

    def _rules_of_kind(self) -> Iterator[RowRule]:
        texts = self.texts
        labels = self.labels
        bounds = self.bounds
        if self.kind is Kind.regression:
            is_range = len(bounds) == 2 and -math.inf < bounds[0] < bounds[1] < math.inf
            yield is_range, "bounds", "the smallest and the largest value of a regression"
        elif self.kind is Kind.span:
            are_two = len(texts) == 2 and not labels
            rule = "the question and the passage of a span task, which has no labels"
            yield are_two, "texts", rule
        else:
            are_different = len(set(labels)) == len(labels) and (self.is_open or len(labels) >= 2)
            yield are_different, "labels", "at least two different labels"
        if self.kind is Kind.word_labels:
            yield len(texts) == 1, "texts", "the field with the words, as each word has a label"
            wrong = [label for label in labels[1:] if not ENTITY_LABEL.fullmatch(label)]
            is_bio = labels[0] == "O" and not wrong
            yield is_bio, "labels", "O, followed by B- and I- with entity types"


def load_tables(paths: Sequence[Path] = ()) -> dict[str, TaskRow]:
    """Return the rows of the package and of a user's tables by name.

    Later rows replace earlier ones.
    """
    rows = dict(_own_rows())
    for path in paths:
        rows |= _rows_of(path, rows)
    return rows


def chosen_rows(rows: Mapping[str, TaskRow], names: Sequence[str]) -> dict[str, TaskRow]:
    """Return the rows with these names, in order.

    A benchmark's name stands for its tasks.
    """
    benchmarks: dict[str, list[str]] = {}
    for task, row in rows.items():
        for benchmark in row.benchmarks:
            benchmarks.setdefault(benchmark, []).append(task)
    chosen: list[str] = []
    for name in names:
        if name not in rows and name not in benchmarks:
            raise_invalid("--glue-tasks", f"some of {', '.join([*benchmarks, *rows])}", name)
        chosen += benchmarks.get(name, [name])
    if len(set(chosen)) < len(chosen):
        raise_invalid("--glue-tasks", "different tasks", ",".join(names))
    if untrained := [name for name in chosen if not rows[name].sets("train")]:
        head = rows[untrained[0]].head
        rule = f"tasks with training data (the head of {head} predicts this one)"
        raise_invalid("--glue-tasks", rule, untrained[0])
    return {name: rows[name] for name in chosen}


@cache
def _own_rows() -> dict[str, TaskRow]:
    return _rows_of(OWN, {})


def _rows_of(path: Path, before: Mapping[str, TaskRow]) -> dict[str, TaskRow]:
    content = read_mapping(path, "a table of tasks", "names, and their fields below them")
    rows: dict[str, TaskRow] = {}
    for name, fields in structured(dict[TaskName, dict[str, Any]], content, str(path)).items():
        where = f"{path}: {name}"
        rows[name] = structured(TaskRow, _like(where, fields, {**before, **rows}), where)
        _check(where, rows[name])
    for name, row in rows.items():
        _expect(f"{path}: {name}", row, _rules_of_head(row, {**before, **rows}))
    return rows


def _check(where: str, row: TaskRow) -> None:
    """Raise the `UserError` of the first rule that a row or one of its parts breaks."""
    _expect(where, row, row.rules())
    for split, sources in row.splits.items():
        for source in sources:
            _expect(f"{where}: {split}", source, source.rules(row))
    if row.text_form is not None:
        _expect(f"{where}: text_form", row.text_form, row.text_form.rules(row))
    for split, submission in row.submissions.items():
        _expect(f"{where}: submissions", submission, submission.rules(row, split))


def _like(where: str, fields: dict[str, Any], rows: Mapping[str, TaskRow]) -> dict[str, Any]:
    """Return the fields of a row, with those of the row that it is `like`.

    Sets with new files lose their submissions. With new labels, `text_form`, `choices` and
    submissions are lost, which follow their order.
    """
    name = fields.pop("like", None)
    if name is None:
        return fields
    if name not in rows:
        raise_invalid(f"{where}: like", f"a known task ({shortened(rows, str(name))})", name)
    before = json.dumps(asdict(rows[name]), default=lambda choice: choice.name)
    merged: dict[str, Any] = json.loads(before)
    if "labels" in fields:
        merged |= {"text_form": None, "choices": [], "submissions": {}}
    if isinstance(fields.get("splits"), dict):
        for split in fields["splits"]:
            merged["submissions"].pop(split, None)
    for field_name, value in fields.items():
        if isinstance(value, dict) and isinstance(merged.get(field_name), dict):
            merged[field_name] |= value
        else:
            merged[field_name] = value
    return merged


def _expect(where: str, part: object, rules: Iterable[RowRule]) -> None:
    """Raise the `UserError` of the first rule that a part of a row breaks."""
    for holds, name, rule, *wrong in rules:
        if not holds:
            value = wrong[0] if wrong else getattr(part, name)
            shown = value.name if isinstance(value, Enum) else value
            raise_invalid(f"{where}: {name}", rule, shown)


def _rules_of_head(row: TaskRow, rows: Mapping[str, TaskRow]) -> Iterator[RowRule]:
    def shape(row: TaskRow) -> tuple[Kind, int]:
        return row.kind, 1 if row.kind is Kind.ranking else len(row.labels)

    fits = not row.head or (row.head in rows and shape(rows[row.head]) == shape(row))
    yield fits, "head", "another task of the same kind with as many labels"
    is_predicted = bool(row.head or row.sets("train"))
    yield is_predicted, "head", "the task whose head predicts this task without training data"
