"""The interface of a kind of answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, Self

from torch import Tensor

from fairseq_mtmoe.answers.predicted import Predicted, Values
from fairseq_mtmoe.answers.uncertainty import Uncertainty
from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.data.nlu.table import TaskRow
from fairseq_mtmoe.data.nlu.tokenizing import TokenizedSplit

Said = str | int | float


def only_answer(said: Sequence[Said]) -> str:
    """Return the answer that a model gave to every one of several examples; empty where it gave others too.

    Args:
        said: as `Scored.said` has it; of words a line for each, with the label behind a tab.
    """
    found = {line.rpartition("\t")[2] for text in said for line in str(text).split("\n")}
    return found.pop() if len(found) == 1 and len(said) > 1 else ""


class Scored(Protocol):
    """What turns what was predicted of a set into its metrics and its file."""

    def columns(self, metric: str, split: Any, predicted: Predicted) -> tuple[Values, ...]:
        """See `Answer`."""
        ...

    def said(self, split: Any, predicted: Predicted, labels: Sequence[str | int]) -> list[Said]:
        """See `Answer`."""
        ...


class Answer(ABC):
    """A kind of answer, with what a task's row says of it.

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
        """The sum of the losses of some examples, float32.

        Args:
            numbers: of the head, (E, …), in any floating-point type.
            labels: of the examples, (E, …), as the collated batch has them.
        """

    @abstractmethod
    def predictions(self, numbers: Tensor) -> Tensor:
        """What the head predicts of each example, as it is scored and submitted, (E, …), float32; NaN fills up."""

    @abstractmethod
    def uncertainty(self, numbers: Tensor, labels: Tensor) -> Uncertainty:
        """How uncertain the model is of each example (CA-MTL, equation 4).

        Args:
            numbers: of the head, (E, …); of a kind with `dropout_draws` (E, draws, …).
            labels: of the examples, (E, …), which may tell where there is nothing to answer, and no more than that.
        """

    def columns(self, metric: str, split: TokenizedSplit, predicted: Predicted) -> tuple[Values, ...]:
        """What `tasks._benchmark.metrics` makes a metric of, over the units that it is of: examples, or others.

        A single column is what each unit reached, of which the metric is the mean; of two the first has labels and the
        second predictions; here these.

        Args:
            metric: one of `metrics`.
            split: the set.
            predicted: of it.
        """
        return split.labels_E[predicted.examples_E], predicted.values_V

    @abstractmethod
    def said(self, split: TokenizedSplit, predicted: Predicted, labels: Sequence[str | int]) -> list[Said]:
        """Each example's answer as a file of predictions has it.

        Args:
            split: the set.
            predicted: of it.
            labels: what the file calls the task's classes.
        """
