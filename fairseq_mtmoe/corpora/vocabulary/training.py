"""Training of one SentencePiece model for all languages.

The model covers the characters of each script.

Its text is sampled by temperature (Tang et al. 2020, following XLM): by a language's (share of all
lines)^(1/T).
"""

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
import xxhash
from numpy.typing import NDArray

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.isolated import Lost, isolated
from fairseq_mtmoe.corpora.cleaning.characters import CODES, Columns, scripts
from fairseq_mtmoe.corpora.cleaning.keys import mixed
from fairseq_mtmoe.corpora.recipes.schema import (
    CHARACTERS_PER_PIECE,
    LEAST_PIECES,
    MOST_PIECES,
    Vocabulary,
)
from fairseq_mtmoe.multitask.sampling.schedule import apportion, temperature_probabilities

# Lines to train on; more do not change vocabularies of this size, and take minutes.
MAX_LINES = 400_000
THREADS = 8  # fixed, as the sums depend on it and the model records it
SIZE = "vocabulary: size"  # in a recipe

_MOST_BYTES = 4192  # SentencePiece skips longer lines
_PART = 1000  # characters of longer lines' parts
_LINES_AT_ONCE = 10_000
_INDICES_AT_ONCE = 1 << 20
# Smallest share of letters for a script to be covered; foreign names need no pieces.
_LEAST_SHARE = 0.001

Indices = NDArray[np.int64]

# Limits that training never reaches; it runs in a process only so that an interrupt ends it.
_MEMORY = 1 << 46
_SECONDS = 10**7
_TOO_FEW_PIECES = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
_TOO_MANY_PIECES = re.compile(r"set it to a value <= (\d+)")


def sample_lines(
    sizes: Mapping[str, int], temperature: float, seed: int, total: int = MAX_LINES
) -> dict[str, Indices]:
    """Return sorted indices of sampled sentences by language.

    Small languages are repeated as a whole.
    """
    sizes = {lang: size for lang, size in sorted(sizes.items()) if size}
    if not sizes:
        return {}
    shares = temperature_probabilities(list(sizes.values()), temperature)
    quotas = apportion(min(sum(sizes.values()), total), shares, offset=0.5)
    indices = {}
    for lang, quota in zip(sizes, quotas, strict=True):
        copies, rest = divmod(max(1, int(quota)), sizes[lang])
        drawn = _drawn(sizes[lang], rest, xxhash.xxh3_64_intdigest(f"{seed}\n{lang}".encode()))
        indices[lang] = np.sort(np.concatenate([np.tile(np.arange(sizes[lang]), copies), drawn]))
    return indices


def _drawn(size: int, count: int, draw: int) -> Indices:
    """Return `count` different indices below `size`, those with the smallest keys."""
    best = np.zeros(0, np.uint64)
    indices = np.zeros(0, np.int64)
    if not count:
        return indices
    for first in range(0, size, _INDICES_AT_ONCE):
        some = np.arange(first, min(first + _INDICES_AT_ONCE, size))
        best = np.append(best, mixed(np.full(len(some), draw, np.uint64), some.astype(np.uint64)))
        indices = np.append(indices, some)
        smallest = np.argsort(best)[:count]
        best = best[smallest]
        indices = indices[smallest]
    return indices


def default_size(sentences: int, lines: Sequence[str], characters: int) -> int:
    """Return the default number of pieces for a text, by `SIZE_RULE`.

    Most pieces then occur a hundred times or more, the largest useful vocabulary of Gowda and May
    ("Finding the Optimal Vocabulary Size for Neural Machine Translation", 2020): by Zipf's law the
    last of V pieces has a share of 1 / 10 V.
    """
    length = sum(map(len, lines)) / max(1, len(lines))
    pieces = 2 * characters + round(sentences * length / CHARACTERS_PER_PIECE)
    return min(max(pieces, LEAST_PIECES), MOST_PIECES)


def train(lines: Sequence[str], vocabulary: Vocabulary, sentences: int) -> bytes:
    """Return a serialized model of `vocabulary.size` pieces.

    By default it has at most `default_size` pieces.

    `character_coverage` also holds for each script. `lines` are a sample of the `sentences`.
    """
    required = required_characters(lines, vocabulary.character_coverage)
    size = vocabulary.size or default_size(sentences, lines, len(required))
    return train_model_apart(
        lines, size, vocabulary.character_coverage, required, vocabulary.size is None
    )


def required_characters(lines: Sequence[str], coverage: float) -> str:
    """Return each script's most frequent letters and marks.

    They make up this share of the script's text.
    """
    counts = np.zeros(CODES, np.int64)
    for first in range(0, len(lines), _LINES_AT_ONCE):
        codes = Columns.of(lines[first : first + _LINES_AT_ONCE]).codes
        used, times = np.unique(codes, return_counts=True)
        counts[used] += times
    present = np.flatnonzero(counts)
    present = present[np.argsort(-counts[present], kind="stable")]  # the most frequent first
    script = scripts()[1][present]
    letters = int(counts[present[script > 0]].sum())
    required: list[int] = []
    for number in np.unique(script[script > 0]).tolist():
        codes_of_script = present[script == number]
        summed = np.cumsum(counts[codes_of_script])
        if summed[-1] >= _LEAST_SHARE * letters:
            required += codes_of_script[
                : np.searchsorted(summed, coverage * summed[-1]) + 1
            ].tolist()
    return "".join(map(chr, sorted(required)))


def train_model_apart(lines: Sequence[str], *arguments: object) -> bytes:
    """Run `train_model` in a process, as training in C++ ignores interrupts."""
    try:
        return isolated(train_model, list(lines), *arguments, memory=_MEMORY, seconds=_SECONDS)
    except Lost as error:
        raise UserError(f"SentencePiece could not train a vocabulary: {error}.") from error


def train_model(
    lines: Sequence[str],
    vocab_size: int,
    character_coverage: float,
    required_characters: str = "",
    may_have_fewer: bool = False,
) -> bytes:
    """Return a serialized unigram model with `vocab_size` pieces.

    They include fairseq's special pieces.

    Each required character has a piece. With `may_have_fewer` the model may be smaller if the text
    allows no more.

    Raises:
        UserError: the text does not allow this size.
    """
    model = io.BytesIO()
    required: dict[str, Any] = {}
    if required_characters:
        required["required_chars"] = required_characters
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_parts(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            # Our normalisation is NFC; SentencePiece's NFKC would rewrite references.
            normalization_rule_name="identity",
            bos_id=0,
            pad_id=1,
            eos_id=2,
            unk_id=3,
            num_threads=THREADS,
            minloglevel=2,
            **required,
        )
    except RuntimeError as error:
        if match := _TOO_FEW_PIECES.search(str(error)):
            raise UserError(
                f"`{SIZE}` (`--vocab-size`) must be at least {match[1]},"
                f" the number of characters in this text, but is {vocab_size};"
                " raise it, or lower `character_coverage` (`--character-coverage`)."
            ) from error
        match = _TOO_MANY_PIECES.search(str(error))
        if match and may_have_fewer:
            return train_model(lines, int(match[1]), character_coverage, required_characters)
        if match:
            raise UserError(
                f"`{SIZE}` (`--vocab-size`) must be at most {match[1]} for this text,"
                f" but is {vocab_size} instead."
            ) from error
        raise RuntimeError(f"SentencePiece failed: {error}") from error
    return model.getvalue()


def _parts(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, those that SentencePiece would skip in parts."""
    for line in lines:
        if len(line.encode()) > _MOST_BYTES:
            yield from textwrap.wrap(line, _PART, break_on_hyphens=False)
        else:
            yield line
