"""What a row of the table of tasks has: what a task is, where its files are and what stands in them."""

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
