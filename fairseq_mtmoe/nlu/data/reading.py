"""Reading of the examples of a task's split.

It finds the files, interprets records and leaves examples out.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from glob import escape, glob
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import regular_file
from fairseq_mtmoe.nlu.data.answers import normalized
from fairseq_mtmoe.nlu.data.formats import Lines, Record, records
from fairseq_mtmoe.nlu.data.table import (
    BY_LABEL,
    FORM_FIELD,
    Format,
    Kind,
    Source,
    TaskRow,
    TextForm,
)
from fairseq_mtmoe.nlu.data.token_runs import whole_characters

logger = logging.getLogger(__name__)

# The folders of unpacked benchmarks below the data directory.
FOLDERS = ("", "GLUE", "SuperGLUE", "glue_data")
WITHOUT_LABELS = "`mtmoe predict` writes predictions for data without labels"


@dataclass(frozen=True)
class Span:
    """Characters `start` to `end` (excluded) of text number `text`, from 0."""

    text: int
    start: int
    end: int


@dataclass(frozen=True)
class Example:
    """An example of a task before tokenization.

    Test data has no label, `right`, `answers` and `tags`.
    """

    candidates: tuple[tuple[str, ...], ...]  # one or two texts; in a ranking for each choice
    # The class, from 0; the first right choice; the value of a regression; for labels of words 1 if
    # any differs from the first label, else 0.
    label: int | float | None
    key: str  # id in a benchmark's submission
    # The place of the words in `candidates[0]` that the example is about, or of the answers.
    spans: tuple[Span, ...] = ()
    right: tuple[int, ...] = ()  # ranking: all right choices
    names: tuple[str, ...] = ()  # open ranking: each candidate's name in a submission
    answers: tuple[str, ...] = ()  # question about a passage: right answers
    words: tuple[str, ...] = ()  # labels of words: the words, of which the text is made with spaces
    tags: tuple[int, ...] = ()  # labels of the words
    reads: str = ""  # input of a text-to-text model; see `TextForm`
    referent: str = ""  # text that its answer is compared with


@dataclass(frozen=True)
class TaskSet:
    """A set of a task's examples below `root`, such as MNLI's `valid/mismatched`."""

    root: Path
    name: str  # of the task
    row: TaskRow
    split: str

    @property
    def key(self) -> str:
        """The name of the set in its split, such as `mnli/mismatched`."""
        _, slash, further = self.split.partition("/")
        return f"{self.name}{slash}{further}"

    @property
    def is_for_training(self) -> bool:
        """Whether it belongs to the training data."""
        return self.split.partition("/")[0] == "train"

    @property
    def place(self) -> tuple[Path, Source] | None:
        """The folder and the source whose files exist; the first of several."""
        for source in self.row.splits.get(self.split, []):
            for folder in FOLDERS:
                if _files(self.root / folder, source, self.row.labels):
                    return self.root / folder, source
        return None


def sets_of(root: Path, rows: Mapping[str, TaskRow], split: str) -> list[TaskSet]:
    """Return the sets of a split, such as `valid` and `valid/mismatched`, of tasks."""
    return [TaskSet(root, name, row, key) for name, row in rows.items() for key in row.sets(split)]


def labels_of(examples: Iterable[Example]) -> NDArray[np.float64]:
    """Return the examples' labels, NaN without, (E,)."""
    return np.array([example.label for example in examples], dtype=np.float64)


def keys_of(examples: Iterable[Example]) -> NDArray[np.str_]:
    """Return the examples' keys, (E,)."""
    return np.array([example.key for example in examples])


def expect_files(sets: Iterable[TaskSet]) -> None:
    """Check that sets exist (UserError, with all missing files)."""
    missing = [task_set for task_set in sets if task_set.place is None]
    if missing:
        _refuse_missing(missing)


def _refuse_missing(sets: Sequence[TaskSet]) -> NoReturn:
    titles = ", ".join(dict.fromkeys(task_set.row.title for task_set in sets))
    files = []
    for task_set in sets:
        files.append(" or ".join(source.file for source in task_set.row.splits[task_set.split]))
    data = f"the {sets[0].split.partition('/')[0]} data of {titles}"
    raise UserError(
        f"`{sets[0].root}` must contain {data}, but these files are missing: {', '.join(files)}."
    )


def source_files(task_set: TaskSet) -> list[Path]:
    """Return all files that `read_split` reads, in a fixed order."""
    folder, source = task_set.place or _refuse_missing([task_set])
    ids = [folder / name for name in (source.keep_ids, source.leave_ids) if name]
    return [path for path, _ in _files(folder, source, task_set.row.labels)] + ids


def read_split(task_set: TaskSet, labelled: bool = True, as_text: bool = False) -> list[Example]:
    """Return the examples of a set, in the order of its file."""
    row = task_set.row
    folder, source = task_set.place or _refuse_missing([task_set])
    label_examples: dict[str | None, list[Example]] = {}  # a label may have many files
    for path, label in _files(folder, source, row.labels):
        lines = Lines(path, source, label, row.skip_ragged, skip_unfound=task_set.is_for_training)
        file_examples = []
        for record in _chosen(folder, source, records(lines)):
            example = _example(record, row, labelled)
            if example is None:
                continue
            if as_text and row.text_form:
                example = _with_text(record, row.text_form, example)
            file_examples.append(example)
        label_examples.setdefault(label, []).extend(file_examples)
        for why, count in lines.left_out.items():
            logger.warning(f"{path}: examples left out: {count} ({why})")
    read: list[Example] = []
    for examples in label_examples.values():
        read += _part(examples, source)
    if not read:
        raise UserError(f"`{folder / source.file}` contains no examples of {row.title}.")
    if source.count and len(read) != source.count:
        logger.warning(
            f"{folder / source.file} has {len(read)} examples, but the authors' file has "
            f"{source.count}"
        )
    for n, read_example in enumerate(read):
        if not read_example.key:
            read[n] = replace(read_example, key=str(n))
    return read


def _files(folder: Path, source: Source, labels: list[str]) -> list[tuple[Path, str | None]]:
    """Return a source's files, each with the label of its examples if it has one.

    The list is empty if a file is missing.
    """
    if source.format not in BY_LABEL:
        return [(folder / source.file, None)] if (folder / source.file).exists() else []
    files: list[tuple[Path, str | None]] = []
    for label in labels:
        pattern = source.file.replace("{label}", escape(label))
        paths = sorted(map(Path, glob(str(Path(escape(str(folder)), pattern)))))
        if not paths:
            return []
        files += [(path, label) for path in paths]
    return files


def _part(examples: list[Example], source: Source) -> list[Example]:
    start, end = (round(share * len(examples)) for share in source.part or (0, 1))
    if source.part_seed is None:
        return examples[start:end]
    drawn = np.random.default_rng(source.part_seed).permutation(len(examples))[start:end]
    return [examples[number] for number in sorted(drawn.tolist())]


def _chosen(folder: Path, source: Source, file_records: Iterable[Record]) -> Iterator[Record]:
    kept = _ids(folder, source.keep_ids, len(source.ids))
    left = _ids(folder, source.leave_ids, len(source.ids))
    for record in file_records:
        key = tuple(map(record.text, source.ids))
        if (not source.keep_ids or key in kept) and key not in left:
            yield record


def _ids(folder: Path, name: str, size: int) -> set[tuple[str, ...]]:
    if not name:
        return set()
    lines = regular_file(folder / name).read_text(encoding="utf-8-sig").splitlines()
    ids = {tuple(line.split()) for line in lines if line.strip()}
    if any(len(key) != size for key in ids):
        raise UserError(f"`{folder / name}` must have {size} ids in each line.")
    return ids


def _with_text(record: Record, form: TextForm, example: Example) -> Example:
    def said(name: str) -> str:
        value = record.fields.get(name)
        return ", ".join(map(str, value)) if isinstance(value, list) else record.text(name)

    reads = FORM_FIELD.sub(lambda match: said(match[1]), form.reads)
    return replace(example, reads=reads, referent=said(form.referent) if form.referent else "")


def _example(record: Record, row: TaskRow, labelled: bool) -> Example | None:
    """Return a record's example; None if it is left out."""
    key_value = record.fields.get(row.key)
    key = "" if key_value is None else whole_characters(str(key_value))
    if row.kind is Kind.word_labels:
        return _labelled_words(record, row, labelled, key)
    texts = tuple(_text(record, row, text) for text in row.texts)
    if row.is_open:
        return _open_ranking(record, row, labelled, Example((texts,), None, key))
    if row.kind is Kind.span:
        asked = Example((texts,), None, key)
        return _question(record, asked) if labelled else asked
    label = _label(record, row) if labelled else None
    if labelled and label is None:
        record.lines.left_out["they are marked as unlabelled"] += 1
        return None
    candidates = tuple((*texts, _text(record, row, choice)) for choice in row.choices) or (texts,)
    right = () if row.kind is not Kind.ranking or label is None else (int(label),)
    return Example(candidates, label, key, _spans(record, row, texts), right)


def _open_ranking(record: Record, row: TaskRow, labelled: bool, asked: Example) -> Example:
    choices = record.items(row.choices[0], str)
    names = record.items(row.names, str) if row.names else choices
    if not choices or len(names) != len(choices):
        raise record.wrong(
            f"there must be candidates and a name for each, but there are {len(choices)} "
            f"candidates and {len(names)} names"
        )
    candidates = tuple((*asked.candidates[0], choice) for choice in choices)
    example = replace(asked, candidates=candidates, names=tuple(names))
    if not labelled:
        return example
    right = sorted(set(record.items(row.label, int)))
    if not right or not 0 <= right[0] <= right[-1] < len(choices):
        raise record.wrong(
            f"the right candidates must be numbers from 0 to {len(choices) - 1}, but are {right}; "
            f"{WITHOUT_LABELS}"
        )
    return replace(example, label=right[0], right=tuple(right))


def _question(record: Record, asked: Example) -> Example | None:
    """Return a question about a passage with its answers.

    It is None if the question has no answer in the passage to learn from, and is left out.
    """
    answers = record.fields["answers"]
    if answers is None:
        raise record.wrong(
            f"training and scoring require answers, but there are none; {WITHOUT_LABELS}"
        )
    if not answers:
        record.lines.left_out["the question has no answer"] += 1
        return None
    spans = _answer_spans(record, asked.candidates[0][1])
    if record.lines.skip_unfound and record.fields["spans"] and not spans:
        record.lines.left_out["no answer is at its given place in the passage"] += 1
        return None
    return replace(asked, answers=tuple(record.items("answers", str)), spans=spans)


def _answer_spans(record: Record, passage: str) -> tuple[Span, ...]:
    """Return the answers' spans.

    Wrong spans are left out for MRQA, where programs found them, and an error for SQuAD.
    """
    spans = []
    for text, start, end in record.fields["spans"]:
        if not 0 <= start < end <= len(passage):
            rule = f"must be within the passage of {len(passage)} characters"
            raise record.wrong(f"an answer {rule}, but is from {start} to {end}")
        answer = passage[start:end]
        if text == answer or _letters(text) == _letters(answer):
            spans.append(Span(1, start, end))
        elif record.lines.source.format is Format.squad:
            raise record.wrong(
                f"the passage must contain the answer {text!r:.80} at character {start}, but has "
                f"{answer!r:.80} there"
            )
    return tuple(spans)


def _letters(text: object) -> str:
    """Return an answer for comparison.

    Some files have it in another case or with other spaces.
    """
    return normalized(str(text)).replace(" ", "")


def _labelled_words(record: Record, row: TaskRow, labelled: bool, key: str) -> Example:
    words = tuple(record.items(row.texts[0], str))
    if not words:
        raise record.wrong("the example has no words")
    example = Example(((" ".join(words),),), None, key, words=words)
    if not labelled:
        return example
    labels = record.items(row.label, str)
    if len(labels) != len(words):
        raise record.wrong(
            f"there must be a label for each of {len(words)} words, but there are {len(labels)}; "
            f"{WITHOUT_LABELS}"
        )
    for n, label in enumerate(labels):
        if label not in row.labels:
            number = record.number + n * (record.lines.source.format is Format.conll)
            rule = f"one of {', '.join(row.labels)}"
            fault = f"the label of {words[n]!r:.40} must be {rule}, but is {label!r:.80} instead"
            raise record.lines.wrong(number, fault)
    tags = tuple(map(row.labels.index, labels))
    return replace(example, label=int(any(tags)), tags=tags)


def _text(record: Record, row: TaskRow, text: str) -> str:
    """Return a field's text, or a template with its fields filled in."""

    def said(name: str) -> str:
        value = record.text(name)
        return row.say[name].get(value, value) if name in row.say else value

    if "{" not in text:
        return said(text)
    return FORM_FIELD.sub(lambda match: said(match[1]), text)


def _label(record: Record, row: TaskRow) -> int | float | None:
    value = ""
    if record.fields.get(row.label) is not None:
        value = record.text(row.label)
    if value in row.ignore:
        return None
    if value in row.labels:
        return row.labels.index(value)
    rule = f"one of {', '.join(row.labels)}"
    if row.kind is Kind.regression:
        low, high = row.bounds
        rule = f"a number from {low} to {high}"
        with suppress(ValueError):
            if low <= (score := float(value)) <= high:
                return score
    fault = f"the label must be {rule}, but is {value!r:.80} instead"
    raise record.wrong(f"{fault}; {WITHOUT_LABELS}")


def _spans(record: Record, row: TaskRow, texts: Sequence[str]) -> tuple[Span, ...]:
    spans = []
    for words in row.words:
        start = record.text(words.start)
        end = record.text(words.end)
        if not (
            start.isdecimal()
            and end.isdecimal()
            and int(start) < int(end) <= len(texts[words.text])
        ):
            raise record.wrong(
                f"a word must be within the text of {len(texts[words.text])} characters, but is "
                f"from {start} to {end}"
            )
        spans.append(Span(words.text, int(start), int(end)))
    return tuple(spans)
