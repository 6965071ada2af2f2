"""T5's pretraining task: words of a text are hidden in spans, and written down by the model.

"Exploring the Limits of Transfer Learning" (Raffel et al., 2020), §3.1.4 and §3.3.4: 15% of the tokens are hidden, in
spans of 3 on average. The model reads the text with a sentinel of its own in the place of each span, and writes each
sentinel, followed by what it stands for. As in its authors' code (`random_spans_noise_mask`), a text begins with a
token that is seen and ends with one that is hidden, and how many tokens are hidden, in how many spans, depends on its
length alone: so texts of one length give inputs and answers of one length each.

Letters: B texts, T their tokens, S spans; tokens are numbers, as in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DENSITY, MEAN_SPAN = 0.15, 3.0
SENTINELS = 100

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Lengths:
    """How a text of `tokens` tokens is divided: `hidden` of them are, in `spans` spans."""

    tokens: int
    hidden: int
    spans: int

    @staticmethod
    def of(tokens: int) -> Lengths:
        """Of a text of so many tokens; of each kind there is one at least."""
        hidden = min(max(round(tokens * DENSITY), 1), tokens - 1)
        return Lengths(tokens, hidden, min(max(round(hidden / MEAN_SPAN), 1), tokens - hidden))

    @property
    def inputs(self) -> int:
        """Tokens that the encoder reads: what is seen, a sentinel for each span, and the end."""
        return self.tokens - self.hidden + self.spans + 1

    @property
    def answers(self) -> int:
        """Tokens that the decoder writes: what is hidden, a sentinel for each span, and the end."""
        return self.hidden + self.spans + 1

    @staticmethod
    def filling(inputs: int) -> Lengths:
        """Of the longest text of which the encoder reads at most `inputs` tokens."""
        tokens = 2
        while Lengths.of(tokens + 1).inputs <= inputs:
            tokens += 1
        return Lengths.of(tokens)


def composition(total: int, parts: int, generator: np.random.Generator) -> Tokens:
    """`parts` numbers of at least 1 with this sum, each such list as likely as any other."""
    ends = np.sort(generator.choice(total - 1, parts - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], ends, [total]]))


def hidden_mask(lengths: Lengths, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Which tokens of a text are hidden, (T,): seen and hidden spans by turns."""
    seen = composition(lengths.tokens - lengths.hidden, lengths.spans, generator)
    hidden = composition(lengths.hidden, lengths.spans, generator)
    runs = np.stack([seen, hidden], axis=1).reshape(-1)
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs)


def with_sentinels(tokens: Tokens, hidden: NDArray[np.bool_], first_sentinel: int, end: int) -> Tokens:
    """A text (T,) with a sentinel in the place of each hidden span, and its end; sentinels count down."""
    starts = hidden & ~np.concatenate([[False], hidden[:-1]])
    sentinels = first_sentinel + 1 - np.cumsum(starts)
    marked = np.where(starts, sentinels, tokens)
    return np.append(marked[starts | ~hidden], end)


def corrupted(texts: Tokens, first_sentinel: int, end: int, generator: np.random.Generator) -> tuple[Tokens, Tokens]:
    """What the encoder reads and what the decoder writes of texts (B, T).

    Args:
        texts: tokens, without sentinels.
        first_sentinel: the number of `<extra_id_0>`; the next ones are below it.
        end: the token that ends inputs and answers.
        generator: draws what is hidden.
    """
    lengths = Lengths.of(texts.shape[1])
    masks = [hidden_mask(lengths, generator) for _ in texts]
    inputs = [with_sentinels(text, mask, first_sentinel, end) for text, mask in zip(texts, masks, strict=True)]
    answers = [with_sentinels(text, ~mask, first_sentinel, end) for text, mask in zip(texts, masks, strict=True)]
    return np.stack(inputs), np.stack(answers)
