"""Task types with one answer for a text: a label, a label of two words, a candidate, a number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.data.nlu import answers
from fairseq_mtmoe.data.nlu.table import TaskRow
from fairseq_mtmoe.data.nlu.tokenizing import TokenizedSplit
from fairseq_mtmoe.task_types.task_type import (
    DROPOUT_DRAWS,
    Labels,
    LabelText,
    Predictions,
    TaskType,
    Uncertainty,
    Values,
    entropy_of,
    halves_of,
)


@dataclass(frozen=True)
class Classification(TaskType):
    """One of the labels; the head reads [CLS] (MT-TaG, equation 7). Labels (E,) count from 0; numbers are (E, C).

    `exact-match` is MultiRC's: the share of questions of which every answer is judged rightly.
    """

    metrics = (*TaskType.metrics, "macro-f1", "exact-match")

    num_labels: int

    @classmethod
    def of(cls, row: TaskRow) -> Self:
        return cls(len(row.labels))

    @property
    def head(self) -> HeadSize:
        return HeadSize(self.num_labels)

    def loss(self, numbers: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy divided by log C, so that tasks of more classes do not weigh more (MT-TaG, §3.3)."""
        return F.cross_entropy(numbers.float(), labels.long(), reduction="sum") / math.log(numbers.shape[1])

    def predictions(self, numbers: Tensor) -> Tensor:
        """The best one's number, (E,)."""
        return numbers.argmax(1).float()

    def uncertainty(self, numbers: Tensor, labels: Tensor) -> Uncertainty:
        return entropy_of(numbers)

    def columns(self, metric: str, split: TokenizedSplit, predictions: Predictions) -> tuple[Values, ...]:
        labels_E, predictions_E = super().columns(metric, split, predictions)
        if metric != "exact-match":
            return labels_E, predictions_E
        return (right_questions(split.keys_E[predictions.examples_E].tolist(), labels_E != predictions_E),)

    def label_text(self, split: TokenizedSplit, predictions: Predictions, labels: Labels) -> list[LabelText]:
        return [labels[number] for number in predictions.values_V.astype(np.int64).tolist()]


def right_questions(keys_E: Sequence[str], is_wrong_E: NDArray[np.bool_]) -> Values:
    """1 for each question of which no answer is wrong, else 0; keys of one question differ after the last / alone."""
    questions_E = [key.rpartition("/")[0] or key for key in keys_E]
    _, question_E = np.unique(questions_E, return_inverse=True)
    right_Q: Values = (np.bincount(question_E, is_wrong_E) == 0).astype(np.float64)
    return right_Q


@dataclass(frozen=True)
class WordPair(Classification):
    """One of the labels, about two words; the head reads these beside [CLS]."""

    @property
    def head(self) -> HeadSize:
        return HeadSize(self.num_labels, num_words=2)


@dataclass(frozen=True)
class Ranking(TaskType):
    """One of the candidates, each of which is a sequence of its own.

    Labels (E, C) are 1 for those that are right, 0 for others and NaN where an example has fewer; numbers are (E, C).
    `exact-match` and `text-f1` compare names, as ReCoRD's evaluation does: with the right one that is most alike.
    """

    metrics: tuple[str, ...] = ("accuracy", "exact-match", "text-f1")

    @classmethod
    def of(cls, row: TaskRow) -> Self:
        """See `TaskType`: candidates that labels stand for have no names to compare."""
        return cls() if row.is_open else cls(("accuracy",))

    @property
    def head(self) -> HeadSize:
        """One number for a candidate; a bias would be the same for all of them."""
        return HeadSize(1, has_bias=False)

    def loss(self, numbers: Tensor, labels: Tensor) -> Tensor:
        """The negative logarithm of the probability of all right candidates together, divided by log C of the example.

        With one right candidate this is cross-entropy, as of labels. A candidate alone costs nothing.
        """
        is_none = labels.isnan()
        logs = numbers.float().masked_fill(is_none, -math.inf).log_softmax(1)
        right = logs.masked_fill(labels != 1, -math.inf).logsumexp(1)
        candidates = (~is_none).sum(1).clamp(min=2)
        return -(right / candidates.log()).sum()

    def predictions(self, numbers: Tensor) -> Tensor:
        """The best one's number, (E,)."""
        return numbers.argmax(1).float()

    def uncertainty(self, numbers: Tensor, labels: Tensor) -> Uncertainty:
        return entropy_of(numbers.float().masked_fill(labels.isnan(), -math.inf))

    def columns(self, metric: str, split: TokenizedSplit, predictions: Predictions) -> tuple[Values, ...]:
        chosen_E = split.row_offsets_E[predictions.examples_E] + predictions.values_V.astype(np.int64)
        if metric == "accuracy" or not len(split.names):
            return (split.is_correct_S[chosen_E].astype(np.float64),)
        reached = []
        for example, chosen in zip(predictions.examples_E.tolist(), chosen_E.tolist(), strict=True):
            first, end = split.row_offsets_E[example : example + 2]
            right = first + np.flatnonzero(split.is_correct_S[first:end] == 1)
            reached.append(answers.best(metric, split.names[chosen], [split.names[number] for number in right]))
        return (np.array(reached),)

    def label_text(self, split: TokenizedSplit, predictions: Predictions, labels: Labels) -> list[LabelText]:
        """See `TaskType`: the candidate's name where they have some."""
        chosen_E = predictions.values_V.astype(np.int64)
        if not len(split.names):
            return [labels[number] for number in chosen_E.tolist()]
        return [split.names[number] for number in (split.row_offsets_E[predictions.examples_E] + chosen_E).tolist()]


@dataclass(frozen=True)
class Regression(TaskType):
    """A number from `low` to `high`; the head reads [CLS] (MT-TaG, equation 8). Labels and numbers are (E,), (E, 1)."""

    dropout_draws: ClassVar[int] = DROPOUT_DRAWS
    metrics = ("spearman", "pearson")

    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def of(cls, row: TaskRow) -> Self:
        return cls(*row.bounds)

    @property
    def head(self) -> HeadSize:
        return HeadSize(1)

    def loss(self, numbers: Tensor, labels: Tensor) -> Tensor:
        """The squared error as it is."""
        return F.mse_loss(numbers.squeeze(1).float(), labels.float(), reduction="sum")

    def predictions(self, numbers: Tensor) -> Tensor:
        """The numbers within the bounds, (E,)."""
        return numbers.squeeze(1).float().clamp(self.low, self.high)

    def uncertainty(self, numbers: Tensor, labels: Tensor) -> Uncertainty:
        """Which half of the examples each is in, which is not in the paper; numbers are (E, draws, 1)."""
        return halves_of(numbers.squeeze(2), labels)

    def label_text(self, split: TokenizedSplit, predictions: Predictions, labels: Labels) -> list[LabelText]:
        """See `TaskType`: without digits beyond float32's."""
        return [float(str(np.float32(value))) for value in predictions.values_V]
