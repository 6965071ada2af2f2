"""Comparison of answers, and files of predictions for benchmark servers.

Answers are compared as in SQuAD's `evaluate-v1.1.py`.
"""

import json
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.nlu.data.table import FORMS_OF_KIND, Form, Submission, TaskRow

ARTICLES = re.compile(r"\b(a|an|the)\b")
NUMBER = re.compile("0|[1-9][0-9]{0,99}")  # as JSON and Python write it; 007 is a text
WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

Answer = tuple[str, str | int | float]  # an example's key and its predicted label


def normalized(text: str) -> str:
    """Return a text in lower case without ASCII punctuation and articles.

    Single spaces separate its words.
    """
    return " ".join(ARTICLES.sub(" ", text.lower().translate(WITHOUT_PUNCTUATION)).split())


def exact_match(answer: str, right: str) -> float:
    """Return 1 if both are equal after normalization, else 0."""
    return float(normalized(answer) == normalized(right))


def f1(answer: str, right: str) -> float:
    """Return F1 over the words of both after normalization."""
    words = normalized(answer).split()
    right_words = normalized(right).split()
    shared = (Counter(words) & Counter(right_words)).total()
    return 2 * shared / (len(words) + len(right_words)) if shared else 0.0


ALIKE = {"em": exact_match, "exact-match": exact_match, "f1": f1, "text-f1": f1}  # by metric


def best(metric: str, answer: str, right: Iterable[str]) -> float:
    """Return an answer's best score over the right ones, by a metric of `ALIKE`."""
    return max(ALIKE[metric](answer, right_answer) for right_answer in right)


def submission_of(name: str, row: TaskRow, split: str) -> Submission:
    """Return the file and form of a set's predictions.

    Training and validation sets use the form of the test set.
    """
    _, slash, further = split.partition("/")
    form = FORMS_OF_KIND.get(row.kind, Form.tsv)
    suffix = "json" if form is Form.squad else form.name
    plain = Submission("-".join(filter(None, (name, further))) + f".{suffix}", form)
    return row.submissions.get(f"test{slash}{further}", plain)


def file_names(rows: Mapping[str, TaskRow]) -> set[str]:
    """Return the names of all files of predictions for these tasks."""
    return {
        submission_of(name, row, split).file for name, row in rows.items() for split in row.splits
    }


def expect_different_keys(name: str, form: Form, keys: Sequence[str]) -> None:
    """Check the keys of a set's predictions (UserError: examples share one)."""
    if form is not Form.conll and len(set(keys)) < len(keys):  # CoNLL's form has no keys
        repeated = Counter(keys).most_common(1)[0][0]
        raise UserError(
            f"`{name}: key` must name a field with a different value in each example, but several "
            f"examples have {repeated!r:.80}."
        )


def written(submission: Submission, keys: Iterable[str], texts: Iterable[str | int | float]) -> str:
    """Return the content of a file of predictions."""
    lines = _FORMS[submission.form](list(zip(keys, texts, strict=True)))
    return "".join(f"{line}\n" for line in lines)


def _jsonl(answers: Sequence[Answer]) -> Iterable[str]:
    for key, label in answers:
        # A key that was a number in the file becomes one again.
        index = int(key) if NUMBER.fullmatch(key) else key
        yield json.dumps({"idx": index, "label": label})


def _multirc(answers: Sequence[Answer]) -> Iterable[str]:
    """Yield MultiRC's lines; keys are `passage/question/answer`, as made by `formats`."""
    numbered = []
    for key, label in answers:
        numbers = [int(part) for part in key.split("/")]
        numbered.append((numbers, label))
    for passage, passage_answers in groupby(numbered, lambda answer: answer[0][0]):
        questions: list[dict[str, Any]] = []
        for question, question_answers in groupby(passage_answers, lambda answer: answer[0][1]):
            choices = [{"idx": numbers[2], "label": label} for numbers, label in question_answers]
            questions.append({"idx": question, "answers": choices})
        yield json.dumps({"idx": passage, "passage": {"questions": questions}})


def _conll(answers: Sequence[Answer]) -> Iterable[str]:
    for _, text in answers:
        yield str(text)
        yield ""


_FORMS: Mapping[Form, Callable[[Sequence[Answer]], Iterable[str]]] = {
    Form.tsv: lambda answers: ["index\tprediction", *(f"{key}\t{label}" for key, label in answers)],
    Form.jsonl: _jsonl,
    Form.multirc: _multirc,
    Form.squad: lambda answers: [json.dumps(dict(answers))],
    Form.conll: _conll,
}
