"""Task types of text-to-text models.

An output is a label only if it is a label's text.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.nlu.data import answers
from fairseq_mtmoe.nlu.data.table import Kind, TaskRow
from fairseq_mtmoe.nlu.data.text_split import (
    Pieces,
    TextSplit,
    answer_texts_of,
    form_of,
    label_texts,
    stepped,
)
from fairseq_mtmoe.nlu.types.task_type import (
    LabelText,
    Predictions,
    Scored,
    Values,
    right_questions,
)

logger = logging.getLogger(__name__)

NO_LABEL = "no-label"  # a metric: the fraction of answers that are no label
NONE = -1  # the value of an answer that is no label
# T5 removes them before it compares referents of pronouns.
_DETERMINERS = (
    "a an each every few her his many much my our some that the their these this those which whose "
    "your"
)
DETERMINERS = frozenset(_DETERMINERS.split())


@dataclass(frozen=True)
class TextTaskType(Scored):
    """A task whose answers are texts; predicted values are tokens with an end.

    An answer that is no label counts as wrong, as in T5. It belongs to no class for accuracy and
    Matthews' correlation, to the wrong class for F1, and is below all values of a regression.
    """

    row: TaskRow
    pieces: Pieces

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels):
            texts = ", ".join(label_texts(self.row))
            rule = f"a model that distinguishes the labels of {self.row.title} ({texts})"
            raise_invalid("spiece.model", rule, self.labels)

    @property
    def labels(self) -> list[str]:
        """The text of each label as a model writes it; empty if answers are no labels."""
        return list(map(self.pieces.as_written, label_texts(self.row)))

    @property
    def most_tokens(self) -> int | None:
        """The number of tokens that tell a label from other texts; None without labels."""
        texts = label_texts(self.row)
        if self.row.kind is Kind.regression:
            low, high = self.row.bounds
            step = form_of(self.row).step
            texts = [stepped(low + step * n, step) for n in range(round((high - low) / step) + 1)]
        if not texts:
            return None
        # One more token, because an answer that continues after a label's text is no label.
        return max(map(len, map(self.pieces.token_ids, texts))) + 1

    def written(self, predictions: Predictions) -> list[str]:
        """Return the generated texts."""
        return [self.pieces.text(values.astype(np.int64).tolist()) for _, values in predictions]

    def columns(
        self, metric: str, split: TextSplit, predictions: Predictions
    ) -> tuple[Values, ...]:
        """Return the labels and the values of the answers, or each answer's score."""
        written = self.written(predictions)
        # The answer is compared with the most similar right text.
        if metric in answers.ALIKE and not self.row.labels:
            scores = []
            for n, text in zip(predictions.examples_E.tolist(), written, strict=True):
                right = answer_texts_of(self.row, split.examples[n])
                scores.append(answers.best(metric, text, right))
            return (np.array(scores),)
        values_E = self.values(split, predictions, written)
        labels_E = split.labels_E[predictions.examples_E]
        is_none_E = values_E == self._none
        if metric == NO_LABEL:
            return (is_none_E.astype(np.float64),)
        if metric == "exact-match":
            return (right_questions(split, predictions, labels_E != values_E),)
        if metric == "f1":
            values_E = np.where(is_none_E, 1 - labels_E, values_E)
        return labels_E, values_E

    @property
    def _none(self) -> float:
        """The value of an answer that is no label."""
        return self.row.bounds[0] - 1 if self.row.kind is Kind.regression else NONE

    def values(self, split: TextSplit, predictions: Predictions, written: Sequence[str]) -> Values:
        """Return each answer as a label's number or a regression's value, (E,)."""
        if form_of(self.row).referent:
            referents = [split.examples[n].referent for n in predictions.examples_E.tolist()]
            return np.array(list(map(names_the_same, written, referents)))
        if self.row.kind is Kind.regression:
            return np.array(list(map(self._number, written)))
        number_of_text = {text: float(number) for number, text in enumerate(self.labels)}
        return np.array([number_of_text.get(text, NONE) for text in written])

    def _number(self, text: str) -> float:
        low, high = self.row.bounds
        try:
            value = float(text)
        except ValueError:
            return self._none
        return min(max(value, low), high) if math.isfinite(value) else self._none

    def label_text(
        self, split: TextSplit, predictions: Predictions, labels: Sequence[str | int]
    ) -> list[LabelText]:
        """Return answers for a file; an answer that is no label becomes the first label.

        In a regression it becomes the minimum.
        """
        written = self.written(predictions)
        if not has_labels(self.row):
            return [*written]
        values_E = self.values(split, predictions, written)
        if none := int((values_E == self._none).sum()):
            share = f"{none} of {len(written)} answers are no label"
            logger.warning(f"{self.row.title}: {share}; they are written as the first label")
        if self.row.kind is Kind.regression:
            return [*np.maximum(values_E, self.row.bounds[0]).tolist()]
        return [labels[max(int(value), 0)] for value in values_E.tolist()]


def metrics_of_text(row: TaskRow) -> tuple[str, ...]:
    """Return the metrics that can score a text-to-text model's answers to a task."""
    class_metrics = ("accuracy", "matthews", "f1", "macro-f1")
    metrics = {
        Kind.classification: (*class_metrics, "exact-match"),
        Kind.word_pair: class_metrics,
        Kind.regression: ("spearman", "pearson"),
        Kind.ranking: ("accuracy",) if row.labels else ("exact-match", "text-f1"),
        Kind.span: ("em", "f1"),
    }
    return metrics.get(row.kind, ())


def has_labels(row: TaskRow) -> bool:
    """Return whether answers are labels or numbers."""
    return bool(row.labels) or row.kind is Kind.regression


def names_the_same(answer: str, referent: str) -> float:
    """Return 1 if a noun matches a pronoun's referent, else 0; -1 without a noun."""
    words = set(answer.lower().split()) - DETERMINERS
    right = set(referent.lower().split()) - DETERMINERS
    if not words:
        return NONE
    # A match: one contains all words of the other, and both or none have an apostrophe.
    is_like = ("'" in "".join(words)) == ("'" in "".join(right))
    return float(is_like and (words <= right or right <= words))
