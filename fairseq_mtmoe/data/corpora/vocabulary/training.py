"""A SentencePiece model for all languages, in which every script has its characters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairseq_mtmoe.data.corpora.cleaning.characters import CODES, Columns, scripts
from fairseq_mtmoe.data.corpora.recipes import Vocabulary
from fairseq_mtmoe.data.corpora.spm import (
    CHARACTERS_PER_PIECE,
    LEAST_PIECES,
    MOST_PIECES,
    RECIPE_NAMES,
    TextTooSmall,
    train_model_apart,
)

_AT_ONCE = 10_000  # lines
_LEAST_SHARE = 0.001
"""Of all letters, for a script to count as one of the text's own: a foreign name here and there needs no pieces."""


def default_size(sentences: int, lines: Sequence[str], characters: int) -> int:
    """How many pieces fit a text, by `SIZE_RULE`.

    Most pieces then occur a hundred times or more, which Gowda and May ("Finding the Optimal Vocabulary Size for Neural
    Machine Translation", 2020) found to be the largest vocabulary that helps: by Zipf's law the last of V pieces has a
    share of about 1 / 10 V of the text, and a piece has about four characters.

    Args:
        sentences: of all languages together.
        lines: a sample of these.
        characters: different ones that the vocabulary must have.
    """
    length = sum(map(len, lines)) / max(1, len(lines))
    pieces = 2 * characters + round(sentences * length / CHARACTERS_PER_PIECE)
    return min(max(pieces, LEAST_PIECES), MOST_PIECES)


def train(
    lines: Sequence[str], vocabulary: Vocabulary, sentences: int, names: tuple[str, str] = RECIPE_NAMES
) -> tuple[bytes, int]:
    """A serialized model with `vocabulary.size` pieces, in a process of its own (`spm.train_model_apart`); and how many
    it was to have. Without a size these are `default_size`, of which it has as many as the text allows.

    `vocabulary.character_coverage` holds for all characters together and for the letters of each script by themselves:
    over all characters a rare script could lose a large part of its own.

    Args:
        lines: a sample of the text.
        sentences: how many the text has.

    Raises:
        UserError: the text does not fit the size; size and coverage are called by `names`.
    """
    coverage = vocabulary.character_coverage
    required = required_characters(lines, coverage)
    size = vocabulary.size or default_size(sentences, lines, len(required))
    try:
        return train_model_apart(lines, size, coverage, required, names), size
    except TextTooSmall as error:
        if vocabulary.size is not None:
            raise
        return train_model_apart(lines, error.most, coverage, required, names), size


def required_characters(lines: Sequence[str], coverage: float) -> str:
    """Of every script of the text the most frequent letters and marks, as many as make up this share of its text."""
    counts = np.zeros(CODES, np.int64)
    for first in range(0, len(lines), _AT_ONCE):
        codes = Columns.of(lines[first : first + _AT_ONCE]).codes
        used, times = np.unique(codes, return_counts=True)
        counts[used] += times
    present = np.flatnonzero(counts)
    present = present[np.argsort(-counts[present], kind="stable")]  # the most frequent first
    script = scripts()[1][present]
    letters = int(counts[present[script > 0]].sum())
    required: list[int] = []
    for number in np.unique(script[script > 0]).tolist():
        own = present[script == number]
        summed = np.cumsum(counts[own])
        if summed[-1] >= _LEAST_SHARE * letters:
            required += own[: np.searchsorted(summed, coverage * summed[-1]) + 1].tolist()
    return "".join(map(chr, sorted(required)))
