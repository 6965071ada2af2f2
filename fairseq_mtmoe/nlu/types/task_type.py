"""The base of task types, types with one answer per text, and predictions.

Uncertainties are those of CA-MTL, §2.2.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.special import entr, ndtr

from fairseq_mtmoe.nlu.bert.heads import HeadSize
from fairseq_mtmoe.nlu.data import answers
from fairseq_mtmoe.nlu.data.tokenizing import TokenizedSplit

# Outputs under dropout for a variance; each costs a pass over a task's candidates.
DROPOUT_DRAWS = 2

Values = NDArray[np.float64]
LabelText = str | int | float
Labels = Sequence[str | int]  # as in a file of predictions


class Uncertainty(NamedTuple):
    """The entropies H_i of E examples, (E,), float32, and their maxima H', (E,)."""

    entropy: Tensor
    most: Tensor


def entropy_of(logits: Tensor) -> Uncertainty:
    """Return the entropy over the last dimension, in nats: (…, C) to (…).

    A logit of -inf is no choice.
    """
    logits = logits.float()
    entropy = entr(logits.softmax(-1)).sum(-1)
    return Uncertainty(entropy, logits.isneginf().logical_not().sum(-1).log())


def halves_of(draws: Tensor, labels: Tensor, middle: float) -> Uncertainty:
    """Return the uncertainty whether examples are in the upper half of all E.

    draws: outputs under dropout, (E, K).
    labels: (E,).
    middle: the middle of the numbers' range; NaN without a range.

    An example's number is assumed to be normally distributed around the mean of its draws m_i, with
    the variance s² + σ_i²: s² is the variance of the errors of all E, without what they have in
    common, and σ_i² that of its draws. The entropy is that of a choice with the probability
    `Φ((m_i - m) / √(s² + σ_i²))` of being above the mean m of all m_i, whatever the unit. A single
    example has no half: for it m is the middle, and s² the squared error.
    """
    # Values may differ so little that it needs double precision.
    draws = draws.double()
    labels = labels.double()
    mean_E = draws.mean(1)
    error_E = mean_E - labels
    between = mean_E.mean()
    if len(mean_E) > 1:
        variance = error_E.var()
    else:
        variance = error_E.square().sum()
        if not math.isnan(middle):
            between = torch.full_like(between, middle)
    noise_E = (variance + draws.var(1)).sqrt().clamp(min=torch.finfo(draws.dtype).tiny)
    above_E = ndtr((mean_E - between) / noise_E)
    entropy_E = (entr(above_E) + entr(1 - above_E)).float()
    return Uncertainty(entropy_E, entropy_E.new_full((len(entropy_E),), math.log(2)))


def flattened(examples: Tensor, predictions: Tensor) -> Tensor:
    """Return pairs of an example's number and a predicted value, (V, 2).

    predictions: (E, …); NaN is padding, if there are several values per example.
    """
    examples_V = examples.repeat_interleave(predictions[:1].numel())
    pairs = torch.stack([examples_V.double(), predictions.flatten().double()], dim=1)
    return pairs if predictions.dim() == 1 else pairs[~pairs[:, 1].isnan()]


@dataclass(frozen=True)
class Predictions:
    """The predicted values of E examples, one or more per example."""

    examples_E: NDArray[np.int64]  # the examples' numbers in the set, in order
    values_V: Values
    starts_E: NDArray[np.int64]  # offsets of the examples' values, and the total number, (E+1,)

    @classmethod
    def gathered(cls, pairs: Tensor) -> Self:
        """Return predictions from the `flattened` ones of all batches.

        Examples may be in any order. The values of an example must be in order.
        """
        examples_V, values_V = pairs.cpu().numpy().T
        order_V = np.argsort(examples_V, kind="stable")
        examples_E, firsts_E = np.unique(examples_V[order_V], return_index=True)
        starts_E = np.append(firsts_E, len(values_V))
        return cls(examples_E.astype(np.int64), values_V[order_V], starts_E)

    def __len__(self) -> int:
        return len(self.examples_E)

    def __iter__(self) -> Iterator[tuple[int, Values]]:
        values = np.split(self.values_V, self.starts_E[1:-1])
        # Without examples `split` gives a part, too.
        return zip(self.examples_E.tolist(), values, strict=False)


def only_answer(texts: Sequence[LabelText]) -> str:
    """Return the answer that several examples share, or ""; see `Scored.label_text`."""
    answers_given = {line.rpartition("\t")[2] for text in texts for line in str(text).split("\n")}
    return answers_given.pop() if len(answers_given) == 1 and len(texts) > 1 else ""


class Scored(ABC):
    """Scores and writes the predictions of a `TokenizedSplit` or a `TextSplit`."""

    @abstractmethod
    def columns(self, metric: str, split: Any, predictions: Predictions) -> tuple[Values, ...]:
        """Return a metric's arguments: a column to average, or labels and predictions."""

    @abstractmethod
    def label_text(self, split: Any, predictions: Predictions, labels: Labels) -> list[LabelText]:
        """Return each example's answer as in a file of predictions."""


class TaskType(Scored):
    """A kind of task, with the settings of a row of the table."""

    # Outputs under dropout that `uncertainty` needs; 0: one without dropout.
    dropout_draws: ClassVar[int] = 0
    metrics: tuple[str, ...] = ("accuracy", "matthews", "spearman", "f1")  # applicable metrics

    @property
    @abstractmethod
    def head(self) -> HeadSize:
        """The size of its head, with the encoder states that the head reads."""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of losses, float32, of head outputs (E, …) and labels (E, …)."""

    def predictions(self, logits: Tensor) -> Tensor:
        """Return the predictions to score and submit, (E, …), float32, padded with NaN.

        By default, the index of the greatest logit: (E, C) to (E,).
        """
        return logits.argmax(1).float()

    @abstractmethod
    def uncertainty(self, logits: Tensor, labels: Tensor) -> Uncertainty:
        """Return each example's uncertainty (CA-MTL, equation 4).

        logits: head outputs (E, …), or (E, draws, …) with `dropout_draws`.
        """

    def columns(self, metric: str, split: Any, predictions: Predictions) -> tuple[Values, ...]:
        """Return the labels and the predictions, of one length."""
        return split.labels_E[predictions.examples_E], predictions.values_V

    def label_text(self, split: Any, predictions: Predictions, labels: Labels) -> list[LabelText]:
        """Return the label of each prediction."""
        return [labels[number] for number in predictions.values_V.astype(np.int64).tolist()]


@dataclass(frozen=True)
class Classification(TaskType):
    """One of the labels; the head reads [CLS] (MT-TaG, equation 7).

    Labels (E,) count from 0; logits are (E, C).
    """

    metrics = (*TaskType.metrics, "macro-f1", "exact-match")

    num_labels: int

    @property
    def head(self) -> HeadSize:
        """The head's size: a number for each label."""
        return HeadSize(self.num_labels)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return cross-entropy over log C: many classes weigh no more (MT-TaG, §3.3)."""
        return F.cross_entropy(logits.float(), labels.long(), reduction="sum") / math.log(
            logits.shape[1]
        )

    def uncertainty(self, logits: Tensor, labels: Tensor) -> Uncertainty:
        """Return the entropy over the labels, and its maximum: (E, C) to (E,)."""
        return entropy_of(logits)

    def columns(
        self, metric: str, split: TokenizedSplit, predictions: Predictions
    ) -> tuple[Values, ...]:
        """Return labels and predictions; for exact match, whether each question is right."""
        labels_E, predictions_E = super().columns(metric, split, predictions)
        if metric != "exact-match":
            return labels_E, predictions_E
        return (right_questions(split, predictions, labels_E != predictions_E),)


def right_questions(split: Any, predictions: Predictions, is_wrong_E: NDArray[np.bool_]) -> Values:
    """Return 1 for each question without a wrong answer, else 0.

    Keys of one question differ only after the last `/`.
    """
    keys_E = split.keys_E[predictions.examples_E].tolist()
    questions_E = [key.rpartition("/")[0] or key for key in keys_E]
    _, question_E = np.unique(questions_E, return_inverse=True)
    right_Q: Values = (np.bincount(question_E, is_wrong_E) == 0).astype(np.float64)
    return right_Q


@dataclass(frozen=True)
class WordPair(Classification):
    """One of the labels, about two words; the head reads their and [CLS]'s states."""

    @property
    def head(self) -> HeadSize:
        """The head's size: a number for each label, from [CLS] and two words."""
        return HeadSize(self.num_labels, num_words=2)


@dataclass(frozen=True)
class Ranking(TaskType):
    """One of the candidates, each of which is its own sequence; logits are (E, C).

    Labels (E, C) are 1 for right candidates, 0 for others and NaN as padding. `exact-match` and
    `text-f1` compare a candidate's text with the most similar right one, as ReCoRD's evaluation
    does.
    """

    metrics: tuple[str, ...] = ("accuracy", "exact-match", "text-f1")

    @property
    def head(self) -> HeadSize:
        """The head's size: one number for each candidate."""
        return HeadSize(1, has_bias=False)  # a bias would be the same for all candidates

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return minus the log-probability of all right candidates together, over log C.

        A single candidate has the loss 0.
        """
        is_none = labels.isnan()
        logs = logits.float().masked_fill(is_none, -math.inf).log_softmax(1)
        right = logs.masked_fill(labels != 1, -math.inf).logsumexp(1)
        candidates = (~is_none).sum(1).clamp(min=2)
        return -(right / candidates.log()).sum()

    def uncertainty(self, logits: Tensor, labels: Tensor) -> Uncertainty:
        """Return the entropy over the candidates, and its maximum: (E, C) to (E,)."""
        return entropy_of(logits.float().masked_fill(labels.isnan(), -math.inf))

    def columns(
        self, metric: str, split: TokenizedSplit, predictions: Predictions
    ) -> tuple[Values, ...]:
        """Return the score of each chosen candidate, from 0 to 1."""
        chosen_E = self._chosen(split, predictions)
        if metric == "accuracy" or not len(split.names):
            return (split.is_correct_S[chosen_E].astype(np.float64),)
        reached = []
        for example, chosen in zip(predictions.examples_E.tolist(), chosen_E.tolist(), strict=True):
            first, end = split.row_offsets_E[example : example + 2]
            right = first + np.flatnonzero(split.is_correct_S[first:end] == 1)
            right_names = map(split.names.__getitem__, right)
            reached.append(answers.best(metric, split.names[chosen], right_names))
        return (np.array(reached),)

    def _chosen(self, split: TokenizedSplit, predictions: Predictions) -> NDArray[np.int64]:
        """Return the numbers of the chosen candidates among those of all examples, (E,)."""
        return split.row_offsets_E[predictions.examples_E] + predictions.values_V.astype(np.int64)

    def label_text(
        self, split: TokenizedSplit, predictions: Predictions, labels: Labels
    ) -> list[LabelText]:
        """Return the name of each chosen candidate, or its label without names."""
        if not len(split.names):
            return super().label_text(split, predictions, labels)
        return list(map(split.names.__getitem__, self._chosen(split, predictions)))


@dataclass(frozen=True)
class Regression(TaskType):
    """A number from `low` to `high`; the head reads [CLS] (MT-TaG, equation 8).

    Labels are (E,); the logits, (E, 1), are predicted values.
    """

    dropout_draws: ClassVar[int] = DROPOUT_DRAWS
    metrics = ("spearman", "pearson")

    low: float = -math.inf
    high: float = math.inf

    @property
    def head(self) -> HeadSize:
        """The head's size: one number."""
        return HeadSize(1)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of squared errors: (E, 1) and (E,) to a scalar, float32."""
        return F.mse_loss(logits.squeeze(1).float(), labels.float(), reduction="sum")

    def predictions(self, logits: Tensor) -> Tensor:
        """Return the numbers from `low` to `high`: (E, 1) to (E,)."""
        return logits.squeeze(1).float().clamp(self.low, self.high)

    def uncertainty(self, logits: Tensor, labels: Tensor) -> Uncertainty:
        """Return `halves_of`, which is not in the paper; logits are (E, draws, 1)."""
        middle = (self.low + self.high) / 2
        return halves_of(logits.squeeze(2), labels, middle if math.isfinite(middle) else math.nan)

    def label_text(
        self, split: TokenizedSplit, predictions: Predictions, labels: Labels
    ) -> list[LabelText]:
        """Return each number with the digits of a float32."""
        return [float(str(np.float32(value))) for value in predictions.values_V]
