"""The interface of a task type, its uncertainty (CA-MTL, equations 4 and 5), and the predictions of a set."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.special import entr, ndtr

from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.data.nlu.table import TaskRow

DROPOUT_DRAWS = 2  # outputs under dropout that a spread is taken of: each costs a pass over a task's candidates

Values = NDArray[np.float64]
LabelText = str | int | float
Labels = Sequence[str | int]  # as a file of predictions has them


class Uncertainty(NamedTuple):
    """Of E examples: their entropy H_i (E,), float32, and the most that it can be, H' (E,), where all is undecided."""

    entropy: Tensor
    most: Tensor


def entropy_of(logits: Tensor) -> Uncertainty:
    """Of the choices in the last dimension, in nats: (…, C) to (…); where a logit is -inf, there is no such choice."""
    logits = logits.float()
    entropy = entr(logits.softmax(-1)).sum(-1)
    return Uncertainty(entropy, logits.isneginf().logical_not().sum(-1).log())


def halves_of(draws: Tensor, labels: Tensor) -> Uncertainty:
    """How undecided a model is in which half of E examples, by their numbers, each one is: (E, K) draws, (E,) labels.

    An example's number is taken to be normally distributed around the mean of its draws m_i, with a variance of
    s² + σ_i²: s² is the mean squared error of all E, σ_i² the variance of the example's draws. So it is above the mean
    of all m_i with a probability of `Φ((m_i - m) / √(s² + σ_i²))`, and the entropy is that of a choice of two, which
    classifications can be compared with, whatever the unit.
    """
    draws, labels = draws.double(), labels.double()  # of values that differ little
    said_E = draws.mean(1)
    noise_E = ((said_E - labels).square().mean() + draws.var(1)).sqrt().clamp(min=torch.finfo(draws.dtype).tiny)
    above_E = ndtr((said_E - said_E.mean()) / noise_E)
    entropy_E = (entr(above_E) + entr(1 - above_E)).float()
    return Uncertainty(entropy_E, entropy_E.new_full((len(entropy_E),), math.log(2)))


def flattened(examples: Tensor, predictions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the example that each predicted value of a batch is of, and these values, (V,) both.

    `predictions` are (E,), or (E, …) filled up with NaN, which is left out.
    """
    if predictions.dim() == 1:
        return examples, predictions
    is_one = ~predictions.flatten().isnan()
    return examples.repeat_interleave(predictions[:1].numel())[is_one], predictions.flatten()[is_one]


@dataclass(frozen=True)
class Predictions:
    """The predictions of E examples.

    Attributes:
        examples_E: their numbers in the set, in order.
        values_V: the predicted values, one or more for each, one example's after another's.
        starts_E: where each example's begin in them, and the last one's end, (E+1,).
    """

    examples_E: NDArray[np.int64]
    values_V: Values
    starts_E: NDArray[np.int64]

    @classmethod
    def gathered(cls, examples_V: NDArray[np.int64], values_V: Values) -> Self:
        """From values in any order of examples, those of one in their own order."""
        order_V = np.argsort(examples_V, kind="stable")
        examples_E, firsts_E = np.unique(examples_V[order_V], return_index=True)
        return cls(examples_E, values_V[order_V], np.append(firsts_E, len(values_V)))

    def __len__(self) -> int:
        return len(self.examples_E)

    def __iter__(self) -> Iterator[tuple[int, Values]]:
        """Each example's number, and its values."""
        for example, start, end in zip(self.examples_E.tolist(), self.starts_E, self.starts_E[1:], strict=False):
            yield example, self.values_V[start:end]


def only_answer(texts: Sequence[LabelText]) -> str:
    """Return the answer that a model gave to every one of several examples; empty where it gave others too.

    `texts` are of `Scored.label_text`; of words a line for each, with the label behind a tab.
    """
    found = {line.rpartition("\t")[2] for text in texts for line in str(text).split("\n")}
    return found.pop() if len(found) == 1 and len(texts) > 1 else ""


class Scored(ABC):
    """Makes metrics and a file of what was predicted of a set, a `TokenizedSplit` or a `TextSplit`."""

    @abstractmethod
    def columns(self, metric: str, split: Any, predictions: Predictions) -> tuple[Values, ...]:
        """What `tasks._benchmark.metrics` makes a metric of, over the units that it is of: examples, or others.

        A single column is what each unit reached, of which the metric is the mean; of two the first has labels and the
        second predictions.
        """

    @abstractmethod
    def label_text(self, split: Any, predictions: Predictions, labels: Labels) -> list[LabelText]:
        """Each example's answer as a file of predictions has it."""


class TaskType(Scored):
    """A kind of task, with what its row says of it.

    Attributes:
        metrics: those of `tasks._benchmark.metrics` that can score it.
        dropout_draws: how many outputs under dropout its `uncertainty` is told from; 0 where one without tells it.
    """

    dropout_draws: ClassVar[int] = 0
    metrics: tuple[str, ...] = ("accuracy", "matthews", "spearman", "f1")

    @classmethod
    @abstractmethod
    def of(cls, row: TaskRow) -> Self:
        """That of a task."""

    @property
    @abstractmethod
    def head(self) -> HeadSize:
        """The size of its head, which says what of the encoder's states the head reads, too."""

    @abstractmethod
    def loss(self, numbers: Tensor, labels: Tensor) -> Tensor:
        """The sum of the losses, float32, of a head's numbers (E, …) in any precision and labels (E, …) of a batch."""

    @abstractmethod
    def predictions(self, numbers: Tensor) -> Tensor:
        """What the head predicts of each example, as it is scored and submitted, (E, …), float32; NaN fills up."""

    @abstractmethod
    def uncertainty(self, numbers: Tensor, labels: Tensor) -> Uncertainty:
        """How uncertain the model is of each example (CA-MTL, equation 4).

        Numbers are (E, …), of a kind with `dropout_draws` (E, draws, …); labels tell where there is nothing to answer
        alone.
        """

    def columns(self, metric: str, split: Any, predictions: Predictions) -> tuple[Values, ...]:
        return split.labels_E[predictions.examples_E], predictions.values_V
