"""Predictions as the files that benchmarks' servers take, and as plain tables where no server does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from fairseq_mtmoe.data.nlu.table import Form, Kind, Submission, TaskRow

Answer = tuple[str, str | int | float]  # an example's key, and its label as it is written


def submission_of(name: str, row: TaskRow, split: str) -> Submission:
    """How the predictions of a task's set are written: those of training or validation data as those of test data."""
    _, slash, further = split.partition("/")
    form = {Kind.span: Form.squad, Kind.word_labels: Form.conll}.get(row.kind, Form.tsv)
    suffix = "json" if form is Form.squad else form.name
    plain = Submission("-".join(filter(None, (name, further))) + f".{suffix}", form)
    found: Submission = row.submissions.get(f"test{slash}{further}", plain)
    return found


def file_names(rows: Mapping[str, TaskRow]) -> set[str]:
    """What the files of all tasks' predictions are called."""
    return {submission_of(name, row, split).file for name, row in rows.items() for split in row.splits}


def written(submission: Submission, keys: Iterable[str], texts: Iterable[str | int | float]) -> str:
    """The content of a file of predictions."""
    return "".join(f"{line}\n" for line in _FORMS[submission.form](list(zip(keys, texts, strict=True))))


def _tsv(answers: Sequence[Answer]) -> Iterable[str]:
    return ["index\tprediction", *(f"{key}\t{label}" for key, label in answers)]


def _jsonl(answers: Sequence[Answer]) -> Iterable[str]:
    return (json.dumps({"idx": _index(key), "label": label}) for key, label in answers)


def _multirc(answers: Sequence[Answer]) -> Iterable[str]:
    """Of the keys that `formats` makes of the numbers of passage, question and answer."""
    numbered = [([int(part) for part in key.split("/")], label) for key, label in answers]
    for passage, of_passage in groupby(numbered, lambda answer: answer[0][0]):
        questions: list[dict[str, Any]] = [
            {"idx": question, "answers": [{"idx": numbers[2], "label": label} for numbers, label in of_question]}
            for question, of_question in groupby(of_passage, lambda answer: answer[0][1])
        ]
        yield json.dumps({"idx": passage, "passage": {"questions": questions}})


def _squad(answers: Sequence[Answer]) -> Iterable[str]:
    yield json.dumps(dict(answers))


def _conll(answers: Sequence[Answer]) -> Iterable[str]:
    return (line for _, text in answers for line in (str(text), ""))


def _index(key: str) -> int | str:
    """The number that a key was in the file, if it was one."""
    return int(key) if key.isdecimal() else key


_FORMS: Mapping[Form, Callable[[Sequence[Answer]], Iterable[str]]] = {
    Form.tsv: _tsv,
    Form.jsonl: _jsonl,
    Form.multirc: _multirc,
    Form.squad: _squad,
    Form.conll: _conll,
}
