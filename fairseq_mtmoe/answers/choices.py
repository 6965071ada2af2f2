"""One of several: labels of a text, labels of two words in it, candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.answers.answer import Answer
from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.data.nlu.table import TaskRow


class _OneOfSeveral(Answer):
    """Labels (E,) count from 0; numbers (E, C) are one for each of them."""

    def loss(self, numbers: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy divided by log C, so that tasks of more classes do not weigh more (MT-TaG, §3.3)."""
        return F.cross_entropy(numbers.float(), labels.long(), reduction="sum") / math.log(numbers.shape[1])

    def predictions(self, numbers: Tensor) -> Tensor:
        """The best one's number, (E,)."""
        return numbers.argmax(1).float()


@dataclass(frozen=True)
class Classification(_OneOfSeveral):
    """One of the labels; the head reads [CLS] (MT-TaG, equation 7)."""

    num_labels: int

    @classmethod
    def of(cls, row: TaskRow) -> Self:
        """See `Answer`."""
        return cls(len(row.labels))

    @property
    def head(self) -> HeadSize:
        """A number for each label."""
        return HeadSize(self.num_labels)


@dataclass(frozen=True)
class WordPair(Classification):
    """One of the labels, about two words; the head reads these beside [CLS]."""

    @property
    def head(self) -> HeadSize:
        """A number for each label."""
        return HeadSize(self.num_labels, num_words=2)


@dataclass(frozen=True)
class Ranking(_OneOfSeveral):
    """One of the candidates, each of which is a sequence of its own."""

    @classmethod
    def of(cls, row: TaskRow) -> Self:
        """See `Answer`."""
        return cls()

    @property
    def head(self) -> HeadSize:
        """One number for a candidate; a bias would be the same for all of them."""
        return HeadSize(1, has_bias=False)
