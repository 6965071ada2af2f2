"""The examples of a task's split: which file there is, what its records mean, and what is left out."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np

from fairseq_mtmoe.data.nlu.answer_texts import normalized
from fairseq_mtmoe.data.nlu.examples import Example, Span
from fairseq_mtmoe.data.nlu.formats import Lines, Record, records
from fairseq_mtmoe.data.nlu.table import BY_LABEL, FORM_FIELD, Format, Kind, Source, TaskRow, TextForm
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import regular_file

logger = logging.getLogger(__name__)

FOLDERS = ("", "GLUE", "SuperGLUE", "glue_data")  # below the data directory, in which benchmarks are unpacked
FIELD = re.compile(r"\{(\w+)\}")
LABEL_FIELD = "label"
Item = TypeVar("Item")
WITHOUT_LABELS = "`mtmoe predict` writes predictions for data without labels"
NO_LABEL = ("", "?", "-1")  # what some copies of a benchmark have in the place of labels that nobody knows


def source_of(root: Path, row: TaskRow, split: str) -> tuple[Path, Source]:
    """The folder, and the first of the forms of a split, that is there.

    Raises:
        UserError: none is; the sentence names what was looked for.
    """
    found = _find(root, row, split)
    if found is None:
        _refuse(root, [(row, split)])
    return found


def expect_files(root: Path, rows: Iterable[TaskRow], split: str) -> None:
    """See that all sets of a split are there, before any is read.

    Raises:
        UserError: some are not; the sentence names what was looked for, of all tasks.
    """
    missing = [(row, key) for row in rows for key in row.sets(split) if not is_there(root, row, key)]
    if missing:
        _refuse(root, missing)


def _refuse(root: Path, missing: Sequence[tuple[TaskRow, str]]) -> NoReturn:
    files = [" or ".join(source.file for source in row.splits.get(split, [])) or "nothing" for row, split in missing]
    titles = ", ".join(dict.fromkeys(row.title for row, _ in missing))
    splits = " and ".join(dict.fromkeys(split.partition("/")[0] for _, split in missing))
    are = "is" if len(files) == 1 else "are"
    raise UserError(f"`{root}` must have the {splits} data of {titles}, but {', '.join(files)} {are} not there.")


def is_there(root: Path, row: TaskRow, split: str) -> bool:
    """Whether a split is there in one of its forms."""
    return _find(root, row, split) is not None


def _find(root: Path, row: TaskRow, split: str) -> tuple[Path, Source] | None:
    for source in row.splits.get(split, []):
        for folder in FOLDERS:
            if _files(root / folder, source, row.labels):
                return root / folder, source
    return None


def source_files(root: Path, row: TaskRow, split: str) -> list[Path]:
    """All files that `read_split` reads, in a fixed order."""
    folder, source = source_of(root, row, split)
    ids = [folder / name for name in (source.keep_ids, source.leave_ids) if name]
    return [path for path, _ in _files(folder, source, row.labels)] + ids


def read_split(root: Path, row: TaskRow, split: str, labelled: bool = True, as_text: bool = False) -> list[Example]:
    """The examples of a split, in the order of its file.

    Raises:
        UserError: no file is there, a line is not what the row says, or nothing is in it.
    """
    folder, source = source_of(root, row, split)
    read: list[Example] = []
    for path, label in _files(folder, source, row.labels):
        lines = Lines(path, source, row.skip_ragged, skip_unplaced=split.partition("/")[0] == "train")
        found = [
            _with_text(lines, number, record, row.text_form, example) if as_text and row.text_form else example
            for number, record in _chosen(folder, source, records(lines), lines)
            if (example := _example(lines, number, _labelled(record, label), row, labelled)) is not None
        ]
        read += _part(found, source)
        for why, count in lines.left_out.items():
            logger.warning(f"{path}: {count} examples are left out: {why}")
    if not read:
        raise UserError(f"`{folder / source.file}` must have examples of {row.title}, but has none.")
    if source.count and len(read) != source.count:
        logger.warning(f"{folder / source.file} has {len(read)} examples, and the authors' file has {source.count}")
    return [example if example.key else replace(example, key=str(n)) for n, example in enumerate(read)]


def _files(folder: Path, source: Source, labels: list[str]) -> list[tuple[Path, str | None]]:
    """The files of a source with the label of what is in them; none if one is missing."""
    if source.format not in BY_LABEL:
        return [(folder / source.file, None)] if (folder / source.file).exists() else []
    found: list[tuple[Path, str | None]] = []
    for label in labels:
        paths = sorted(folder.glob(source.file.replace("{label}", label)))
        if not paths:
            return []
        found += [(path, label) for path in paths]
    return found


def _labelled(record: Record, label: str | None) -> Record:
    return record if label is None else {**record, LABEL_FIELD: label}


def _part(examples: list[Example], source: Source) -> list[Example]:
    if not source.part:
        return examples
    start, end = (round(share * len(examples)) for share in source.part)
    if source.part_seed is None:
        return examples[start:end]
    drawn = np.random.default_rng(source.part_seed).permutation(len(examples))[start:end]
    return [examples[number] for number in sorted(drawn.tolist())]


def _chosen(
    folder: Path, source: Source, numbered: Iterable[tuple[int, Record]], lines: Lines
) -> Iterator[tuple[int, Record]]:
    """Those that the lists of ids choose."""
    keep, leave = (
        _ids(folder / name, len(source.ids)) if name else None for name in (source.keep_ids, source.leave_ids)
    )
    for number, record in numbered:
        key = tuple(_field(lines, number, record, name) for name in source.ids)
        if (keep is None or key in keep) and (leave is None or key not in leave):
            yield number, record


def _ids(path: Path, size: int) -> set[tuple[str, ...]]:
    lines = regular_file(path).read_text(encoding="utf-8-sig").split("\n")
    ids = {tuple(line.split()) for line in lines if line.strip()}
    if any(len(key) != size for key in ids):
        raise_invalid(str(path), f"a list with {size} ids in each line", next(key for key in ids if len(key) != size))
    return ids


def _example(lines: Lines, number: int, record: Record, row: TaskRow, labelled: bool) -> Example | None:
    """The example that a record describes; None if its label is to be ignored."""
    if row.is_open:
        return _open_ranking(lines, number, record, row, labelled)
    if row.kind is Kind.span:
        return _question(lines, number, record, row, labelled)
    if row.kind is Kind.word_labels:
        return _labelled_words(lines, number, record, row, labelled)
    label = _label(lines, number, record, row) if labelled else None
    if labelled and label is None:
        lines.leave_out("the label says that there is none")
        return None
    texts = [_text(lines, number, record, row, text) for text in row.texts]
    choices = [_text(lines, number, record, row, f"{{{choice}}}") for choice in row.choices]
    candidates = tuple((*texts, choice) for choice in choices) or (tuple(texts),)
    spans = _spans(lines, number, record, row, texts)
    right = () if row.kind is not Kind.ranking or label is None else (int(label),)
    return Example(candidates, label, str(record.get(row.key, "")), spans, right)


def _with_text(lines: Lines, number: int, record: Record, form: TextForm, example: Example) -> Example:
    """The example with what its record is to a model of texts."""

    def said(name: str) -> str:
        value = record.get(name)
        return ", ".join(map(str, value)) if isinstance(value, list) else _field(lines, number, record, name)

    referent = said(form.referent) if form.referent else ""
    return replace(example, reads=FORM_FIELD.sub(lambda match: said(match[1]), form.reads), referent=referent)


def _open_ranking(lines: Lines, number: int, record: Record, row: TaskRow, labelled: bool) -> Example:
    """The example of a ranking whose record lists its candidates."""
    texts = [_text(lines, number, record, row, text) for text in row.texts]
    choices = _list_of(lines, number, record, row.choices[0], str)
    names = _list_of(lines, number, record, row.names, str) if row.names else choices
    if not choices or len(names) != len(choices):
        raise lines.wrong(number, f"must have candidates, and a name for each, but has {len(choices)} and {len(names)}")
    right: list[int] = []
    if labelled:
        if record.get(row.label) is None:
            raise _without_label(lines, number, row, f"has {', '.join(map(str, record))}")
        right = sorted(set(_list_of(lines, number, record, row.label, int)))
        if not right or not 0 <= right[0] <= right[-1] < len(choices):
            raise lines.wrong(
                number, f"must say which of {len(choices)} candidates, from 0, are right, but says {right}"
            )
    candidates = tuple((*texts, choice) for choice in choices)
    key = str(record.get(row.key, ""))
    return Example(candidates, right[0] if right else None, key, right=tuple(right), names=tuple(names))


def _question(lines: Lines, number: int, record: Record, row: TaskRow, labelled: bool) -> Example | None:
    """A question about a passage, with its answers, of which some may be nowhere in there; None if it is left out.

    A model cannot learn from answers that are nowhere, but its own answer is scored by their texts alone.
    """
    question, passage = (_text(lines, number, record, row, text) for text in row.texts)
    asked = Example(((question, passage),), None, str(record.get(row.key, "")))
    if not labelled:
        return asked
    answers = record["answers"]
    if answers is None:
        raise lines.wrong(number, f"must have answers to be trained or scored on, but has none; {WITHOUT_LABELS}")
    if not isinstance(answers, list) or not all(isinstance(answer, str) for answer in answers):
        raise lines.wrong(number, f"the answers must be a list of texts, but is {answers!r:.80} instead")
    if not answers:
        lines.leave_out("the question has no answer")
        return None
    spans = _places(lines, number, record, passage)
    if lines.skip_unplaced and record["places"] and not spans:
        lines.leave_out("no answer is where it is said to be in the passage")
        return None
    return replace(asked, answers=tuple(answers), spans=spans)


def _places(lines: Lines, number: int, record: Record, passage: str) -> tuple[Span, ...]:
    """Where the answers stand in the passage.

    MRQA's were found by programs, and those that are not there are left out; a person marked SQuAD's.
    """
    spans = []
    for text, start, end in record["places"]:
        if not (isinstance(start, int) and isinstance(end, int) and 0 <= start < end <= len(passage)):
            rule = f"must stand in the passage of {len(passage)} characters"
            raise lines.wrong(number, f"an answer {rule}, but is said to stand from {start} to {end}")
        if text == passage[start:end] or _letters(text) == _letters(passage[start:end]):
            spans.append(Span(1, start, end))
        elif lines.source.format is Format.squad:
            raise lines.wrong(
                number, f"an answer must be {text!r:.80} where it stands, but is {passage[start:end]!r:.80} instead"
            )
    return tuple(spans)


def _letters(text: object) -> str:
    """What is compared of an answer, which some files have in another case, or with other spaces."""
    return normalized(str(text)).replace(" ", "")


def _labelled_words(lines: Lines, number: int, record: Record, row: TaskRow, labelled: bool) -> Example:
    """The example of a sentence, whose record lists its words and their labels."""
    words = _list_of(lines, number, record, row.texts[0], str)
    key = str(record.get(row.key, ""))
    if not words:
        raise lines.wrong(number, "must have words, but has none")
    if not labelled:
        return Example(((" ".join(words),),), None, key, words=tuple(words))
    if record.get(row.label) is None:
        raise _without_label(lines, number, row, f"has {', '.join(map(str, record))}")
    labels = _list_of(lines, number, record, row.label, str)
    if len(labels) != len(words):
        raise lines.wrong(number, f"must have a label for each of {len(words)} words, but has {len(labels)}")
    for n, label in enumerate(labels):
        if label not in row.labels:
            line = number + n if lines.source.format is Format.conll else number
            rule = f"one of {', '.join(row.labels)}"
            raise lines.wrong(line, f"the label of {words[n]!r:.40} must be {rule}, but is {label!r:.80} instead")
    tags = tuple(map(row.labels.index, labels))
    return Example(((" ".join(words),),), int(any(tags)), key, words=tuple(words), tags=tags)


def _list_of(lines: Lines, number: int, record: Record, name: str, kind: type[Item]) -> list[Item]:
    """A field with several values of one type."""
    found = record.get(name)
    if not isinstance(found, list) or not all(type(item) is kind for item in found):
        says = f"{found!r:.80}" if name in record else ", ".join(map(str, record))
        raise lines.wrong(number, f"must have in the field {name} a list of {kind.__name__}, but has {says}")
    return found


def _field(lines: Lines, number: int, record: Record, name: str) -> str:
    if record.get(name) is None:
        raise lines.wrong(number, f"must have the field {name}, but has {', '.join(map(str, record))}")
    value = record[name]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(lines: Lines, number: int, record: Record, row: TaskRow, text: str) -> str:
    """A field, or a text with fields in it."""

    def said(name: str) -> str:
        value = _field(lines, number, record, name)
        return row.say[name].get(value, value) if name in row.say else value

    return FIELD.sub(lambda match: said(match[1]), text) if FIELD.search(text) else said(text)


def _label(lines: Lines, number: int, record: Record, row: TaskRow) -> int | float | None:
    if record.get(row.label) is None:
        raise _without_label(lines, number, row, f"has {', '.join(map(str, record))}")
    value = _field(lines, number, record, row.label)
    if value in row.ignore:
        return None
    if row.kind is Kind.regression:
        low, high = row.bounds
        rule = f"a number from {low} to {high}"
        if low <= (score := _number(value)) <= high:
            return score
    else:
        rule = f"one of {', '.join(row.labels)}"
        if value in row.labels:
            return row.labels.index(value)
    if value in NO_LABEL:
        raise _without_label(lines, number, row, f"is {value!r}")
    raise lines.wrong(number, f"the label must be {rule}, but is {value!r:.80} instead")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _without_label(lines: Lines, number: int, row: TaskRow, found: str) -> UserError:
    return lines.wrong(
        number,
        f"must have a label in the field {row.label} to be trained or scored on, but {found}; {WITHOUT_LABELS}",
    )


def _spans(lines: Lines, number: int, record: Record, row: TaskRow, texts: list[str]) -> tuple[Span, ...]:
    spans = []
    for words in row.words:
        start, end = (_field(lines, number, record, name) for name in (words.start, words.end))
        if not (start.isdecimal() and end.isdecimal() and int(start) < int(end) <= len(texts[words.text])):
            raise lines.wrong(number, f"must say where a word stands in the text, but says from {start} to {end}")
        spans.append(Span(words.text, int(start), int(end)))
    return tuple(spans)
