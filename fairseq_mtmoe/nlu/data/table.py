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
from typing import Any, ClassVar

from fairseq_mtmoe.core.errors import raise_invalid, shortened
from fairseq_mtmoe.core.typed import structured
from fairseq_mtmoe.core.yaml_files import read_mapping

OWN = Path(__file__).with_name("tasks.yaml")
NAME = re.compile(r"[A-Za-z0-9_-]+")
FORM_FIELD = re.compile(r"\{([^{}]+)\}")  # some files have field names of several words
ENTITY_LABEL = re.compile(r"[BI]-.+")
SPLITS = ("train", "valid", "test")
# The configuration of pydantic: labels may be numbers.
_CHECKED = {"extra": "forbid", "coerce_numbers_to_str": True}

# Whether the rule holds, the field, the rule's text, and the wrong value if it is not the field's.
Rule = tuple[bool, str, str] | tuple[bool, str, str, object]


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
    part: list[float] = field(default_factory=list)
    part_seed: int | None = None
    count: int = 0

    def rules(self, row: TaskRow) -> Iterator[Rule]:
        """Yield the rules for the fields."""
        part = self.part
        is_conll = self.format is Format.conll
        is_part = not part or (len(part) == 2 and 0 <= part[0] < part[1] <= 1)
        yield is_part, "part", "two shares from 0 to 1, start and end"
        has_columns = bool(self.columns) or not is_conll
        yield has_columns, "columns", "the fields of a line, including the word's and the label's"
        is_named = ("{label}" in self.file) == (self.format in BY_LABEL)
        yield (
            is_named,
            "file",
            "a name with {label} if there is a file for each label, and only then",
        )
        is_asked = (self.format in QUESTIONS) == (row.kind is Kind.span)
        yield is_asked, "format", "squad or mrqa for a span task, and only there"
        yield (
            not is_conll or row.kind is Kind.word_labels,
            "format",
            "another one if words have no labels",
        )


@dataclass
class Submission:
    """File of a set's predictions for a benchmark's server."""

    __pydantic_config__: ClassVar = _CHECKED

    file: str
    form: Form = Form.tsv
    labels: list[Any] = field(default_factory=list)

    def rules(self, row: TaskRow, split: str) -> Iterator[Rule]:
        """Yield the rules for the fields."""
        count = len(row.labels)
        form = self.form
        yield Path(self.file).name == self.file, "file", "a file name without folders"
        yield (
            not self.labels or len(self.labels) == count,
            "labels",
            f"as many as the task's, {count}",
        )
        is_labelled = (form is Form.conll) == (row.kind is Kind.word_labels)
        yield is_labelled, "form", "conll if words have labels, and only then"
        has_keys = form is not Form.multirc or all(
            source.format is Format.multirc for source in row.splits[split]
        )
        yield has_keys, "form", "a form with one key per example, as the files are not MultiRC's"
        yield (
            (form is Form.squad) == (row.kind is Kind.span),
            "form",
            "squad for a span task, and only there",
        )


@dataclass
class TextForm:
    """A task as text to text; T5's forms are in appendix D of its paper."""

    __pydantic_config__: ClassVar = _CHECKED

    reads: str
    writes: list[str] = field(default_factory=list)
    referent: str = ""
    step: float = 0.2

    def rules(self, row: TaskRow) -> Iterator[Rule]:
        """Yield the rules for the fields."""
        count = len(row.labels)
        writes = self.writes
        yield row.kind is not Kind.word_labels, "", "absent if words have labels", self.reads
        yield bool(FORM_FIELD.search(self.reads)), "reads", "a text with field names in braces"
        fits = not writes or len(writes) == len(set(writes)) == count
        yield fits, "writes", f"as many different texts as labels, {count}"
        is_pair = not self.referent or (count == 2 and not writes)
        yield is_pair, "referent", "given only for tasks with two labels and without `writes`"
        yield 0 < self.step < math.inf, "step", "above 0"


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
    stride: int | None = None
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
    splits: dict[str, list[Source]] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)
    head: str = ""

    @property
    def is_open(self) -> bool:
        """Return whether this is a ranking of any number of candidates without labels."""
        return self.kind is Kind.ranking and not self.labels

    def sets(self, split: str) -> list[str]:
        """Return the names of a split's sets, such as `valid` and `valid/mismatched`."""
        return [name for name in self.splits if name.partition("/")[0] == split]

    def rules(self) -> Iterator[Rule]:
        """Yield the rules for the fields."""
        wrong = [
            name
            for name, sources in self.splits.items()
            if name.partition("/")[0] not in SPLITS or not sources
        ]
        yield (
            not wrong,
            "splits",
            f"{', '.join(SPLITS)}, or one of them with `/` and a name, with files",
            wrong,
        )
        sets = self.sets("test")
        others = self.submissions.keys() - self.sets("test")
        rule = f"for sets of the test data ({', '.join(sets) or 'there are none'})"
        yield not others, "submissions", rule, sorted(others)
        num_texts = len(self.texts)
        is_ranking = self.kind is Kind.ranking
        yield 1 <= num_texts <= 2, "texts", "one text or two"
        yield from self._rules_of_kind()
        yield is_ranking == bool(self.choices), "choices", "given in a ranking, and only there"
        count = 1 if self.is_open else len(self.labels)
        fits = not is_ranking or len(self.choices) == count
        yield (
            fits,
            "choices",
            "a field for each label, or one that lists the candidates if there are no labels",
        )
        indices = [word.text for word in self.words]
        are_there = all(0 <= index < num_texts for index in indices)
        is_pair = len(indices) == (2 if self.kind is Kind.word_pair else 0)
        yield (
            is_pair and are_there,
            "words",
            "two in the texts of a word pair, and none elsewhere",
            indices,
        )

    def _rules_of_kind(self) -> Iterator[Rule]:
        texts = self.texts
        labels = self.labels
        bounds = self.bounds
        if self.kind is Kind.regression:
            is_range = len(bounds) == 2 and -math.inf < bounds[0] < bounds[1] < math.inf
            yield is_range, "bounds", "the smallest and the largest value of a regression"
        elif self.kind is Kind.span:
            are_two = len(texts) == 2 and not labels
            yield (
                are_two,
                "texts",
                "the question and the passage of a span task, which has no labels",
            )
            yield (
                self.stride is None or self.stride >= 1,
                "stride",
                "a number of tokens, at least 1",
            )
        else:
            are_different = len(set(labels)) == len(labels) and (self.is_open or len(labels) >= 2)
            yield are_different, "labels", "at least two different labels"
        if self.kind is Kind.word_labels:
            yield len(texts) == 1, "texts", "the field with the words, as each word has a label"
            wrong = [label for label in labels[1:] if not ENTITY_LABEL.fullmatch(label)]
            is_bio = labels[0] == "O" and not wrong
            yield (
                is_bio,
                "labels",
                "O, followed by B- and I- with entity types",
                (wrong or labels)[0],
            )


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
            raise_invalid("--glue-tasks", f"among {', '.join([*benchmarks, *rows])}", name)
        chosen += benchmarks.get(name, [name])
    if len(set(chosen)) < len(chosen):
        raise_invalid("--glue-tasks", "different tasks", ",".join(names))
    if untrained := [name for name in chosen if not rows[name].sets("train")]:
        head = rows[untrained[0]].head
        rule = f"tasks with training data; this one is predicted by the head of {head}"
        raise_invalid("--glue-tasks", rule, untrained[0])
    return {name: rows[name] for name in chosen}


@cache
def _own_rows() -> dict[str, TaskRow]:
    return _rows_of(OWN, {})


def _rows_of(path: Path, before: Mapping[str, TaskRow]) -> dict[str, TaskRow]:
    rows: dict[str, TaskRow] = {}
    for name, fields in read_mapping(
        path, "a table of tasks", "names, and their fields below them"
    ).items():
        rows[name] = _row(path, name, fields, {**before, **rows})
    for name, row in rows.items():
        _expect(f"{path}: {name}", row, _rules_of_head(row, {**before, **rows}))
    return rows


def _row(path: Path, name: str, content: Any, rows: Mapping[str, TaskRow]) -> TaskRow:
    where = f"{path}: {name}"
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise_invalid(where, "a name of letters, digits, `_` and `-`", name)
    if not isinstance(content, dict):
        raise_invalid(where, "the fields of a task", content)
    row = structured(TaskRow, _like(where, content, rows) if "like" in content else content, where)
    _check(where, row)
    return row


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


def _like(where: str, content: Mapping[str, Any], rows: Mapping[str, TaskRow]) -> dict[str, Any]:
    """Return the fields of a row that begins as another one.

    Sets with new files lose their submissions.
    """
    name = content["like"]
    labels = content.get("labels")
    if name not in rows:
        raise_invalid(f"{where}: like", f"a known task ({shortened(rows, str(name))})", name)
    fields = json.loads(json.dumps(asdict(rows[name]), default=lambda choice: choice.name))
    for replaced in (content.get("splits"), content.get("submissions")):
        for split in replaced if isinstance(replaced, dict) else ():
            fields["submissions"].pop(split, None)
    if isinstance(labels, list):
        _reorder(fields, list(map(str, labels)))
    return _merged(fields, {key: value for key, value in content.items() if key != "like"})


def _merged(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return two mappings as one, in which later values count."""
    merged = dict(before)
    for name, value in after.items():
        earlier = before.get(name)
        if isinstance(earlier, dict) and isinstance(value, dict):
            merged[name] = _merged(earlier, value)
        else:
            merged[name] = value
    return merged


def _reorder(fields: Mapping[str, Any], labels: Sequence[str]) -> None:
    """Put whatever has an entry for each label of a row into another order."""
    if sorted(labels) != sorted(fields["labels"]):
        return
    order = [fields["labels"].index(label) for label in labels]
    form = fields["text_form"] or {"writes": []}
    submissions = fields["submissions"].values()
    for entries in (
        form["writes"],
        fields["choices"],
        *(submission["labels"] for submission in submissions),
    ):
        if len(entries) == len(order):
            entries[:] = [entries[number] for number in order]


def _expect(where: str, part: object, rules: Iterable[Rule]) -> None:
    """Raise the `UserError` of the first rule that a part of a row breaks."""
    for holds, name, rule, *wrong in rules:
        if not holds:
            value = wrong[0] if wrong else getattr(part, name)
            raise_invalid(
                f"{where}: {name}" if name else where,
                rule,
                value.name if isinstance(value, Enum) else value,
            )


def _rules_of_head(row: TaskRow, rows: Mapping[str, TaskRow]) -> Iterator[Rule]:
    def shape(row: TaskRow) -> tuple[Kind, int]:
        return row.kind, 1 if row.kind is Kind.ranking else len(row.labels)

    fits = not row.head or (row.head in rows and shape(rows[row.head]) == shape(row))
    yield fits, "head", "another task of the same kind with as many labels"
    is_predicted = bool(row.head or row.sets("train"))
    yield is_predicted, "head", "the task whose head predicts this one, as it has no training data"
