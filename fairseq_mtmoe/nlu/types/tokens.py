"""Task types of tokens: answers as spans of a passage, and a label for each word."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.nlu.bert.heads import UNREAD, HeadSize
from fairseq_mtmoe.nlu.data import answers
from fairseq_mtmoe.nlu.data.tokenizing import TokenizedSplit
from fairseq_mtmoe.nlu.types.task_type import (
    Labels,
    LabelText,
    Predictions,
    TaskType,
    Uncertainty,
    Values,
    entropy_of,
)


@dataclass(frozen=True)
class Span(TaskType):
    """The tokens of a window that answer the question (Devlin et al., 2019, §4.2).

    Logits are (E, L, 2), the scores of each token as the span's first and last one. Labels are
    these two tokens, (E, 2), or [CLS] twice in a window without the answer. Examples are windows;
    metrics and files of predictions have one entry per question.
    """

    metrics = ("f1", "em")

    longest: int = 30

    @property
    def head(self) -> HeadSize:
        """The head's size: two numbers for each token, from it and [CLS]."""
        return HeadSize(2, num_words=1, per_token=True)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of first and last token, over log P² for P tokens.

        There are P² pairs, so a uniform guess has the loss 1.
        """
        losses_E2 = F.cross_entropy(logits.float(), labels.long(), reduction="none")
        return (losses_E2.sum(1) / (2 * torch.log(_num_tokens(logits)))).sum()

    def predictions(self, logits: Tensor) -> Tensor:
        """Return the best span, (E, 3): the sum of its scores, first and last token."""
        begins_EL, ends_EL = logits.float().unbind(2)
        # The token [CLS] is no answer.
        begins_EL = begins_EL.index_fill(1, begins_EL.new_zeros(1, dtype=torch.long), 2 * UNREAD)
        ends_ELK = F.pad(ends_EL, (0, self.longest - 1), value=2 * UNREAD).unfold(
            1, self.longest, 1
        )
        best_E, index_E = (begins_EL.unsqueeze(2) + ends_ELK).flatten(1).max(1)
        # NaN would mean no prediction, not a model that diverged.
        best_E = best_E.nan_to_num(nan=-math.inf)
        first_E = index_E // self.longest
        further_E = index_E % self.longest
        return torch.stack([best_E, first_E.float(), (first_E + further_E).float()], dim=1)

    def uncertainty(self, logits: Tensor, labels: Tensor) -> Uncertainty:
        """Return the entropy of the first plus that of the last token; at most log P²."""
        is_read = logits > UNREAD / 2
        read_E2L = logits.float().masked_fill(~is_read, -math.inf).transpose(1, 2)
        return Uncertainty(entropy_of(read_E2L).entropy.sum(1), 2 * torch.log(_num_tokens(logits)))

    def columns(
        self, metric: str, split: TokenizedSplit, predictions: Predictions
    ) -> tuple[Values, ...]:
        """Return each question's score against the most similar right answer.

        A question whose windows were not all read has no score.
        """
        texts = self.label_text(split, predictions, ())
        rights = split.passages.rights
        questions_E = np.searchsorted(split.row_offsets_E, predictions.examples_E, side="right") - 1
        windows_E = np.bincount(questions_E, minlength=len(texts))
        scores = []
        for question in np.flatnonzero(windows_E == np.diff(split.row_offsets_E)).tolist():
            scores.append(answers.best(metric, str(texts[question]), rights[question]))
        return (np.array(scores),)

    def label_text(
        self, split: TokenizedSplit, predictions: Predictions, labels: Labels
    ) -> list[LabelText]:
        """Return the text of each question's answer."""
        return [
            *split.passages.found(
                split, predictions.examples_E, predictions.values_V.reshape(-1, 3)
            )
        ]


def _num_tokens(logits: Tensor) -> Tensor:
    """Return each window's number of tokens that the head reads, at least 2, (E,)."""
    return (logits[..., 0] > UNREAD / 2).sum(1).clamp(min=2).float()


@dataclass(frozen=True)
class WordLabels(TaskType):
    """One of the labels for each word; the head reads the word's first token.

    As in Devlin et al., 2019, §5.3. Logits are (E, W, C), labels (E, W), padded with NaN. A word
    without a token, such as a truncated one, is left out of the loss, and labelled O, the first
    label.
    """

    metrics = ("entity-f1",)

    labels: tuple[str, ...]

    @property
    def head(self) -> HeadSize:
        """The head's size: a number for each label of a word."""
        return HeadSize(len(self.labels), per_word=True)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the sum of sentences' mean cross-entropies of words, over log C.

        A uniform guess has the loss 1, as in other tasks.
        """
        labels_W = labels.nan_to_num(0).long().flatten()
        losses_EW = F.cross_entropy(logits.float().flatten(0, 1), labels_W, reduction="none").view(
            labels.shape
        )
        return _mean_of_words(losses_EW, labels).sum() / math.log(logits.shape[2])

    def predictions(self, logits: Tensor) -> Tensor:
        """Return the best label of each word, (E, W), padded with NaN."""
        is_none = (logits == torch.finfo(logits.dtype).min).all(2)
        return logits.argmax(2).float().masked_fill(is_none, math.nan)

    def uncertainty(self, logits: Tensor, labels: Tensor) -> Uncertainty:
        """Return the mean entropy over the words of a sentence that are in the loss."""
        mean_E = _mean_of_words(entropy_of(logits).entropy, labels)
        return Uncertainty(mean_E, mean_E.new_full(mean_E.shape, math.log(logits.shape[2])))

    def columns(
        self, metric: str, split: TokenizedSplit, predictions: Predictions
    ) -> tuple[Values, ...]:
        """Return each sentence's numbers of right, predicted and reference entities.

        Entities are read as in seqeval and CoNLL.
        """
        from seqeval.metrics.sequence_labeling import get_entities

        counts = []
        labels = np.array(self.labels)
        for example, values in predictions:
            right = split.tags_W[split.word_starts_E[example] : split.word_starts_E[example + 1]]
            predicted = set(get_entities(labels[values.astype(int)].tolist()))
            reference = set(get_entities(labels[right.astype(int)].tolist()))
            counts.append((len(predicted & reference), len(predicted), len(reference)))
        return tuple(np.array(counts, dtype=np.float64).T)

    def label_text(
        self, split: TokenizedSplit, predictions: Predictions, labels: Labels
    ) -> list[LabelText]:
        """Return lines of a word, a tab and its label for each example."""
        texts: list[LabelText] = []
        for example, values in predictions:
            lines = []
            for word, label in enumerate(values.astype(int), split.word_starts_E[example]):
                lines.append(f"{split.names[word]}\t{labels[label]}")
            texts.append("\n".join(lines))
        return texts


def _mean_of_words(values_EW: Tensor, labels: Tensor) -> Tensor:
    is_word = ~labels.isnan()
    return values_EW.where(is_word, 0).sum(1) / is_word.sum(1).clamp(min=1)
