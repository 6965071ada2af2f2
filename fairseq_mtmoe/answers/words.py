"""A label for each word of a sentence, such as where a name begins and goes on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.answers.answer import Answer, Said
from fairseq_mtmoe.answers.predicted import Predicted, Values
from fairseq_mtmoe.answers.uncertainty import Uncertainty, entropy_of
from fairseq_mtmoe.backbones.bert.heads import HeadSize
from fairseq_mtmoe.data.nlu.table import TaskRow
from fairseq_mtmoe.data.nlu.tokenizing import TokenizedSplit


@dataclass(frozen=True)
class WordLabels(Answer):
    """One of the labels for each word; the head reads the word's first token (Devlin et al., 2019, §5.3).

    Numbers are (E, W, C), labels (E, W), and NaN where a sentence has fewer words. A word without a token, such as one
    that was cut off with the end of its sentence, has no part in the loss; O, the first label, is predicted for it.
    """

    metrics = ("entity-f1",)

    labels: tuple[str, ...]

    @classmethod
    def of(cls, row: TaskRow) -> Self:
        """See `Answer`."""
        return cls(tuple(row.labels))

    @property
    def head(self) -> HeadSize:
        """A number for each label, for each word."""
        return HeadSize(len(self.labels), per_word=True)

    def loss(self, numbers: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy divided by log C, the mean over a sentence's words: a guess costs 1, as in other tasks."""
        is_word = ~labels.isnan()
        losses_EW = F.cross_entropy(
            numbers.float().flatten(0, 1), labels.nan_to_num(0).long().flatten(), reduction="none"
        ).view(labels.shape)
        sums_E = losses_EW.where(is_word, 0).sum(1)
        return (sums_E / is_word.sum(1).clamp(min=1)).sum() / math.log(numbers.shape[2])

    def predictions(self, numbers: Tensor) -> Tensor:
        """The best label of each word, (E, W); NaN where there is none."""
        is_none = (numbers == torch.finfo(numbers.dtype).min).all(2)
        return numbers.argmax(2).float().masked_fill(is_none, math.nan)

    def uncertainty(self, numbers: Tensor, labels: Tensor) -> Uncertainty:
        """The mean entropy of the labels of a sentence's words: of those that the loss is of."""
        is_word = ~labels.isnan()
        entropy_EW = entropy_of(numbers).entropy
        mean_E = entropy_EW.where(is_word, 0).sum(1) / is_word.sum(1).clamp(min=1)
        return Uncertainty(mean_E, mean_E.new_full(mean_E.shape, math.log(numbers.shape[2])))

    def columns(self, metric: str, split: TokenizedSplit, predicted: Predicted) -> tuple[Values, ...]:
        """See `Answer`: of each sentence how many entities were found, how many predicted, and how many there are.

        Entities are those of seqeval, which reads labels as CoNLL's own evaluation does: an I- that follows nothing of
        its type begins an entity.
        """
        from seqeval.metrics.sequence_labeling import get_entities

        counts = []
        for example, numbers in predicted:
            right = split.tags_W[split.word_starts_E[example] : split.word_starts_E[example + 1]]
            found, there = (set(get_entities([self.labels[int(n)] for n in of])) for of in (numbers, right))
            counts.append((len(found & there), len(found), len(there)))
        hits_E, found_E, there_E = np.array(counts, dtype=np.float64).T
        return hits_E, found_E, there_E

    def said(self, split: TokenizedSplit, predicted: Predicted, labels: Sequence[str | int]) -> list[Said]:
        """See `Answer`: a line for each word, with its label in the second column."""
        starts = split.word_starts_E.tolist()
        return [
            "\n".join(f"{split.names[starts[example] + n]}\t{labels[int(label)]}" for n, label in enumerate(numbers))
            for example, numbers in predicted
        ]
