"""A number, such as how similar two sentences are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.answers.answer import Answer
from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.data.nlu.table import TaskRow


@dataclass(frozen=True)
class Regression(Answer):
    """A number from `low` to `high`; the head reads [CLS] (MT-TaG, equation 8). Labels and numbers are (E,), (E, 1)."""

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
