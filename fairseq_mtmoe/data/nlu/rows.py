"""What a row of the table of tasks has; `docs/task_table.md` explains every field."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Optional

from omegaconf import MISSING


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
    """One form in which a split is distributed."""

    file: str = MISSING
    format: Format = Format.tsv
    columns: list[str] = field(default_factory=list)
    encoding: str = "utf-8-sig"
    keep_ids: str = ""
    leave_ids: str = ""
    ids: list[str] = field(default_factory=list)
    part: list[float] = field(default_factory=list)
    part_seed: Optional[int] = None  # noqa: UP045 (OmegaConf reads it)
    count: int = 0


@dataclass
class Submission:
    """The file of predictions that a benchmark's server takes for a set."""

    file: str = MISSING
    form: Form = Form.tsv
    labels: list[Any] = field(default_factory=list)


@dataclass
class TextForm:
    """How a task is put to a model that reads and writes text; T5's forms are in appendix D of its paper."""

    reads: str = MISSING
    writes: list[str] = field(default_factory=list)
    referent: str = ""
    step: float = 0.2


@dataclass
class TaskRow:
    """A task."""

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
    stride: Optional[int] = None  # noqa: UP045
    longest_answer: int = 30
    max_positions: Optional[int] = None  # noqa: UP045
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
