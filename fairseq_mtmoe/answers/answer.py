"""The interface of a kind of answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from torch import Tensor

from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.data.nlu.table import TaskRow


class Answer(ABC):
    """A kind of answer, with what a task's row says of it.

    Attributes:
        metrics: those of `tasks.glue.metrics` that can score it.
    """

    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "matthews", "spearman", "f1")

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
        """What the head predicts of each example, as it is scored and submitted, (E, …), float32."""
