"""One SentencePiece model for all languages, in which every script has its characters.

Its text is drawn by temperature, as ML-50's data was made (Tang et al. 2020, following XLM): the share of a language is
proportional to (its share of all lines)^(1/T), so that the vocabulary has pieces for small languages too.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece
import xxhash
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.characters import CODES, Columns, scripts
from fairseq_mtmoe.data.corpora.cleaning.keys import mixed
from fairseq_mtmoe.data.corpora.recipes.schema import Vocabulary
from fairseq_mtmoe.data.sampling.schedule import apportion, temperature_probabilities
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.isolated import Lost, isolated

MAX_LINES = 400_000
"""Lines of text that the model is trained on at most; more change no vocabulary of this size, and take minutes."""

THREADS = 8  # of training: as many on every machine, as sums depend on it, and the model says how many there were

OPTIONS = ("--vocab-size", "--character-coverage")  # what a user of the command line calls size and character coverage

RECIPE_NAMES = ("vocabulary.size", "vocabulary.character_coverage")  # what they are called in a recipe

LEAST_PIECES, MOST_PIECES = 1000, 32_000
"""Of a vocabulary whose size nobody says, unless the text is too small for them."""

CHARACTERS_PER_PIECE = 4000

SIZE_RULE = (
    f"two for each different character and one more for every {CHARACTERS_PER_PIECE:,} characters of the text, from"
    f" {LEAST_PIECES:,} to {MOST_PIECES:,}, as far as the text allows"
)

_LINES_AT_ONCE = 10_000
_PLACES_AT_ONCE = 1 << 20
_LEAST_SHARE = 0.001
"""Of all letters, for a script to count as one of the text's own: a foreign name here and there needs no pieces."""

Places = NDArray[np.int64]

_MEMORY, _SECONDS = 1 << 46, 10**7
"""Limits of training, which nobody reaches: it is in a process of its own so that an interrupt ends it at once."""

_TOO_FEW_PIECES = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
_TOO_MANY_PIECES = re.compile(r"set it to a value <= (\d+)")


# ---- its text ----


def temperature_quotas(sizes: Mapping[str, int], temperature: float, total: int) -> dict[str, int]:
    """How many of `total` lines each language gets: in proportion to size^(1/temperature), and at least one."""
    shares = temperature_probabilities(list(sizes.values()), temperature)
    counts = apportion(total, shares, offset=0.5)
    return {lang: max(1, int(count)) for lang, count in zip(sizes, counts, strict=True)}


def sample_lines(sizes: Mapping[str, int], temperature: float, seed: int, total: int = MAX_LINES) -> dict[str, Places]:
    """The places of the sentences to take of each language, sorted; one that is wanted several times is there as often.

    Every language has its share of `total` sentences by `temperature_quotas`. One with fewer sentences is repeated
    whole, and the remainder drawn by hash, so that places depend on sizes, temperature and seed alone.
    """
    sizes = {lang: size for lang, size in sorted(sizes.items()) if size}
    quotas = temperature_quotas(sizes, temperature, min(sum(sizes.values()), total)) if sizes else {}
    places = {}
    for lang, quota in quotas.items():
        copies, rest = divmod(quota, sizes[lang])
        drawn = _drawn(sizes[lang], rest, xxhash.xxh3_64_intdigest(f"{seed}\n{lang}".encode()))
        places[lang] = np.sort(np.concatenate([np.tile(np.arange(sizes[lang]), copies), drawn]))
    return places


def _drawn(size: int, count: int, draw: int) -> Places:
    """`count` different places below `size`: those with the smallest keys, a part of the places at a time."""
    best = np.zeros(0, np.uint64)
    places = np.zeros(0, np.int64)
    for first in range(0, size if count else 0, _PLACES_AT_ONCE):
        some = np.arange(first, min(first + _PLACES_AT_ONCE, size))
        best = np.append(best, mixed(np.full(len(some), draw, np.uint64), some.astype(np.uint64)))
        places = np.append(places, some)
        smallest = np.argsort(best)[:count]
        best, places = best[smallest], places[smallest]
    return places


# ---- the model ----


def default_size(sentences: int, lines: Sequence[str], characters: int) -> int:
    """How many pieces fit a text, by `SIZE_RULE`.

    Most pieces then occur a hundred times or more, which Gowda and May ("Finding the Optimal Vocabulary Size for Neural
    Machine Translation", 2020) found to be the largest vocabulary that helps: by Zipf's law the last of V pieces has a
    share of about 1 / 10 V of the text, and a piece has about four characters. `lines` are a sample of the `sentences`
    of all languages together, `characters` the different ones that the vocabulary must have.
    """
    length = sum(map(len, lines)) / max(1, len(lines))
    pieces = 2 * characters + round(sentences * length / CHARACTERS_PER_PIECE)
    return min(max(pieces, LEAST_PIECES), MOST_PIECES)


def train(
    lines: Sequence[str], vocabulary: Vocabulary, sentences: int, names: tuple[str, str] = RECIPE_NAMES
) -> tuple[bytes, int]:
    """A serialized model with `vocabulary.size` pieces, and how many it was to have. Without a size these are
    `default_size`, of which it has as many as the text allows.

    `vocabulary.character_coverage` holds for all characters together and for the letters of each script by themselves:
    over all characters a rare script could lose a large part of its own.

    Args:
        lines: a sample of the text, which has so many `sentences`.
        names: of size and coverage in the sentence of the `UserError` that says that the text does not fit the size.
    """
    required = required_characters(lines, vocabulary.character_coverage)
    size = vocabulary.size or default_size(sentences, lines, len(required))
    arguments = (vocabulary.character_coverage, required, names, vocabulary.size is None)
    return train_model_apart(lines, size, *arguments), size


def required_characters(lines: Sequence[str], coverage: float) -> str:
    """Of every script of the text the most frequent letters and marks, as many as make up this share of its text."""
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
        own = present[script == number]
        summed = np.cumsum(counts[own])
        if summed[-1] >= _LEAST_SHARE * letters:
            required += own[: np.searchsorted(summed, coverage * summed[-1]) + 1].tolist()
    return "".join(map(chr, sorted(required)))


def train_model_apart(lines: Sequence[str], *arguments: object) -> bytes:
    """`train_model` in a process of its own: training itself, in C++, sees no interrupt."""
    try:
        return isolated(train_model, list(lines), *arguments, memory=_MEMORY, seconds=_SECONDS)
    except Lost as error:
        raise UserError(f"SentencePiece could not train a vocabulary: {error}.") from error


def train_model(
    lines: Sequence[str],
    vocab_size: int,
    character_coverage: float,
    required_characters: str = "",
    names: tuple[str, str] = OPTIONS,
    may_have_fewer: bool = False,
) -> bytes:
    """A serialized unigram model with `vocab_size` pieces, the same bytes for the same lines.

    Its special pieces have fairseq's names and places, so that an id is the same in the model and in a fairseq
    dictionary made from it. Characters that are required have a piece, whatever the coverage says. Raises `UserError`,
    in which size and coverage are called by `names`, if the text does not fit the size, unless it `may_have_fewer`.
    """
    model = io.BytesIO()
    required: dict[str, Any] = {"required_chars": required_characters} if required_characters else {}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            normalization_rule_name="identity",  # ours is NFC; SentencePiece's NFKC would rewrite references
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
                f"`{names[0]}` must be at least {match[1]}, the number of characters in this text,"
                f" but is {vocab_size} instead; raise it or lower `{names[1]}`."
            ) from error
        match = _TOO_MANY_PIECES.search(str(error))
        if match and may_have_fewer:
            return train_model(lines, int(match[1]), character_coverage, required_characters, names)
        if match:
            sentence = f"`{names[0]}` must be at most {match[1]} for this text, but is {vocab_size} instead."
            raise UserError(sentence) from error
        raise RuntimeError(f"SentencePiece failed: {error}") from error
    return model.getvalue()
