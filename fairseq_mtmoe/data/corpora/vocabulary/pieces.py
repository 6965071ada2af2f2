"""A SentencePiece model and fairseq's dictionary, and what they make of each language.

Models that we train and dictionaries that we make of them have the same ids. Given ones may not: in mBART's the
dictionary's ids are one above the model's. A piece is the dictionary's symbol of the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.binarize import SPECIAL, UNKNOWN
from fairseq_mtmoe.data.corpora.cleaning import characters
from fairseq_mtmoe.data.corpora.cleaning.languages import scripts_of
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import text_lines

_SPACE = "\u2581"

_LEAST_SHARED = 0.5  # share of a model's pieces that its dictionary must have: others were made of another model

LEAST_CHARACTERS = 2.0
"""A language is cut into too many pieces if these have fewer characters on average, spaces included: hardly more than
its letters. In 32,000 pieces of 50 languages most have 3 to 4."""

LEAST_WIDE_CHARACTERS = 1.2  # the same of languages in wide characters, which are words or syllables

MOST_UNKNOWN = 0.005  # share of a language's tokens that may be unknown without a warning

_WIDE_SCRIPTS = frozenset({"Hani", "Hira", "Kana", "Hang"})
_NO_SPACES = frozenset({"Hani", "Hira", "Kana", "Thai", "Khmr", "Laoo", "Mymr"})  # between words, that is

_CHARACTERS, _COVERED = "characters ", "covered "
_OTHER = "other"  # in the place of a script: what is no letter or mark, or belongs to several scripts


@dataclass(frozen=True)
class Pieces:
    """What turns a model's ids into the dictionary's.

    Attributes:
        symbols: of the dictionary's file, without fairseq's own.
        ids: for each piece of the model, its id in the dictionary: `UNKNOWN` where that has no such symbol.
    """

    symbols: list[str]
    ids: NDArray[np.int32]


def load(model: bytes, dictionary: Path | None = None) -> Pieces:
    """The pieces of a serialized SentencePiece model and of fairseq's `dict.txt` that belongs to it; without one, it is
    made of the model's pieces.

    Raises:
        UserError: one is none of its kind, or they do not belong together.
    """
    names = _names(model)
    symbols = [name for name in names if name not in SPECIAL] if dictionary is None else _symbols(dictionary)
    places: Mapping[str, int] = {symbol: place for place, symbol in enumerate((*SPECIAL, *symbols))}
    shared = [name for name in names if name in places and name not in SPECIAL]
    if len(shared) < _LEAST_SHARED * len(names):
        raise UserError(
            f"`vocabulary.dictionary` must belong to `vocabulary.model`, but `{dictionary}` has only {len(shared):,}"
            f" of its {len(names):,} pieces."
        )
    return Pieces(symbols, np.array([places.get(name, UNKNOWN) for name in names], np.int32))


def _names(model: bytes) -> list[str]:
    """The pieces of a model; the one for what it does not know is `<unk>` whatever it calls it."""
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load_from_serialized_proto(model)
        names = [processor.id_to_piece(piece) for piece in range(processor.get_piece_size())]
    except RuntimeError as error:
        raise UserError(f"`vocabulary.model` must be a SentencePiece model, but is none: {error}.") from error
    if not names:
        raise UserError("`vocabulary.model` must be a SentencePiece model, but has no pieces.")
    names[processor.unk_id()] = SPECIAL[UNKNOWN]
    return names


def _symbols(path: Path) -> list[str]:
    """The symbols of fairseq's dictionary file: a line for each, with how often it occurs."""
    symbols: dict[str, int] = {}
    for number, line in enumerate(text_lines(path, "a dictionary of fairseq's"), 1):
        entry = line.rstrip()
        symbol, _, count = entry.removesuffix(" #fairseq:overwrite").rpartition(" ")
        if not symbol or not count.lstrip("-").isdecimal():
            rule = f"have a symbol and a number in each line, but line {number} is {line!r:.80}"
        elif symbol in SPECIAL and not entry.endswith("#fairseq:overwrite"):
            rule = f"not have {symbol} (line {number}): fairseq puts it first by itself"
        elif symbol in symbols:
            rule = f"have each symbol once, but lines {symbols[symbol]} and {number} are the same"
        else:
            symbols[symbol] = number
            continue
        raise UserError(f"`{path}` must {rule}.")
    return list(symbols)


# ---- what they make of each language ----


def known_characters(model: sentencepiece.SentencePieceProcessor, ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """For every code point, whether it is a piece that the dictionary has (`ids`), by itself or after a space."""
    pieces = [model.id_to_piece(piece).removeprefix(_SPACE) for piece in np.flatnonzero(ids > UNKNOWN).tolist()]
    return characters.table({ord(piece) for piece in pieces if len(piece) == 1} | {ord(" ")})


def count_characters(lines: Sequence[str], known: NDArray[np.bool_]) -> dict[str, int]:
    """How many characters of each script the normalised text has, as `characters Latn`, and how many of these the
    vocabulary has (`known_characters`), as `covered Latn`: spaces do not count. Of parts of a text each number adds up.
    """
    numbers, of_letters = characters.scripts()
    codes = characters.Columns.of(lines).codes
    codes = codes[codes != ord(" ")]
    script = of_letters[codes]
    counts: dict[str, int] = {}
    for name, which in ((_CHARACTERS, script), (_COVERED, script[known[codes]])):
        times = np.bincount(which, minlength=len(numbers) + 1).tolist()
        counts |= {f"{name}{code}": times[at] for code, at in {_OTHER: 0, **numbers}.items() if times[at]}
    return counts


def table(counts: Mapping[str, Mapping[str, int]], is_given: bool = False) -> dict[str, dict[str, Any]]:
    """A row for each language, for a report.

    Args:
        counts: by language `words` (of text between spaces), `tokens` (pieces), `unknown` (among these), `characters`,
            and those of `count_characters`.
        is_given: whether the vocabulary was made elsewhere, so that no setting changes it.

    Returns:
        By language `pieces_per_word` (None where there are no spaces between words), `characters_per_piece`,
        `unknown_share` of the tokens, `coverage`: the share of characters that the vocabulary has, `scripts`: the same
        of each script, and `warning`: a sentence, or None.
    """
    return {lang: _row(lang, of, is_given) for lang, of in counts.items()}


def _row(lang: str, of: Mapping[str, int], is_given: bool) -> dict[str, Any]:
    by_script = {name.removeprefix(_CHARACTERS): of[name] for name in sorted(of) if name.startswith(_CHARACTERS)}
    covered = {script: of.get(f"{_COVERED}{script}", 0) for script in by_script}
    length, unknown = _share(of["characters"], of["tokens"]), _share(of["unknown"], of["tokens"])
    return {
        "pieces_per_word": None if _NO_SPACES & {*scripts_of(lang)} else _share(of["tokens"], of["words"]),
        "characters_per_piece": length,
        "unknown_share": unknown,
        "coverage": _share(sum(covered.values()), sum(by_script.values())),
        "scripts": {script: _share(covered[script], number) for script, number in by_script.items()},
        "warning": "; ".join(_warnings(lang, length, unknown, is_given)) or None,
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _warnings(lang: str, length: float | None, unknown: float | None, is_given: bool) -> list[str]:
    least = LEAST_WIDE_CHARACTERS if _WIDE_SCRIPTS & {*scripts_of(lang)} else LEAST_CHARACTERS
    found = []
    if length is not None and length < least:
        longer = "a larger `size` or a higher `temperature` gives it longer ones"
        found.append(
            f"a piece has {length:.2f} characters on average, which is under {least:g}: "
            f"{'the given vocabulary has few for it' if is_given else longer}"
        )
    if unknown is not None and unknown > MOST_UNKNOWN:
        more = "a higher `character_coverage` has more of its characters"
        found.append(
            f"{unknown:.2%} of its tokens are unknown, which is over {MOST_UNKNOWN:.1%}: "
            f"{'the given vocabulary lacks some of its characters' if is_given else more}"
        )
    return found
