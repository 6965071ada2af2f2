"""A number, such as how similar two sentences are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.answers.answer import Answer, Said
from fairseq_mtmoe.answers.predicted import Predicted
from fairseq_mtmoe.answers.uncertainty import DROPOUT_DRAWS, Uncertainty, halves_of
from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.data.nlu.table import TaskRow
from fairseq_mtmoe.data.nlu.tokenizing import TokenizedSplit


@dataclass(frozen=True)
class Regression(Answer):
    """A number from `low` to `high`; the head reads [CLS] (MT-TaG, equation 8). Labels and numbers are (E,), (E, 1)."""

    dropout_draws: ClassVar[int] = DROPOUT_DRAWS
    metrics = ("spearman", "pearson")

    low: float = -math.inf
    high: float = math.inf

    @classmethod
    def of(cls, row: TaskRow) -> Self:
        """See `Answer`."""
        return cls(*row.bounds)

    @property
    def head(self) -> HeadSize:
        """One number."""
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

    def said(self, split: TokenizedSplit, predicted: Predicted, labels: Sequence[str | int]) -> list[Said]:
        """See `Answer`: without digits beyond float32's."""
        return [float(str(np.float32(value))) for value in predicted.values_V]
