"""What a vocabulary makes of each language: pieces per word, unknown tokens, characters that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.characters import Columns, scripts
from fairseq_mtmoe.data.corpora.cleaning.languages import scripts_of

LEAST_CHARACTERS = 2.0
"""A language is cut into too many pieces if these have fewer characters on average, spaces included: hardly more than
its letters. In 32,000 pieces of 50 languages most have 3 to 4."""

LEAST_WIDE_CHARACTERS = 1.2
"""The same of languages in wide characters, which are words or syllables."""

MOST_UNKNOWN = 0.005
"""Share of a language's tokens that may be unknown without a warning."""

_WIDE_SCRIPTS = frozenset({"Hani", "Hira", "Kana", "Hang"})
_NO_SPACES = frozenset({"Hani", "Hira", "Kana", "Thai", "Khmr", "Laoo", "Mymr"})  # between words, that is

_CHARACTERS, _COVERED = "characters ", "covered "

OTHER = "other"
"""In the place of a script: what is no letter or mark, or belongs to several scripts."""


def count_characters(lines: Sequence[str], known: NDArray[np.bool_]) -> dict[str, int]:
    """How many characters of each script the text has, as `characters Latn`, and how many of these the vocabulary has,
    as `covered Latn`: spaces do not count. Of parts of a text each number adds up.

    Args:
        lines: of text, normalised.
        known: the characters of the vocabulary (`pieces.known_characters`).
    """
    numbers, of_letters = scripts()
    codes = Columns.of(lines).codes
    codes = codes[codes != ord(" ")]
    script = of_letters[codes]
    counts: dict[str, int] = {}
    for name, which in ((_CHARACTERS, script), (_COVERED, script[known[codes]])):
        times = np.bincount(which, minlength=len(numbers) + 1).tolist()
        counts |= {f"{name}{code}": times[at] for code, at in {OTHER: 0, **numbers}.items() if times[at]}
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
    row = {
        "pieces_per_word": None if _NO_SPACES & {*scripts_of(lang)} else _share(of["tokens"], of["words"]),
        "characters_per_piece": _share(of["characters"], of["tokens"]),
        "unknown_share": _share(of["unknown"], of["tokens"]),
        "coverage": _share(sum(covered.values()), sum(by_script.values())),
        "scripts": {script: _share(covered[script], number) for script, number in by_script.items()},
    }
    return {**row, "warning": _warning(lang, row, is_given)}


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def _warning(lang: str, row: Mapping[str, Any], is_given: bool) -> str | None:
    length, unknown = row["characters_per_piece"], row["unknown_share"]
    least = LEAST_WIDE_CHARACTERS if _WIDE_SCRIPTS & {*scripts_of(lang)} else LEAST_CHARACTERS
    found = []
    if length is not None and length < least:
        found.append(f"a piece has {length:.2f} characters on average, which is under {least:g}: ")
        longer = "a larger `size` or a higher `temperature` gives it longer ones"
        found[-1] += "the given vocabulary has few for it" if is_given else longer
    if unknown is not None and unknown > MOST_UNKNOWN:
        found.append(f"{unknown:.2%} of its tokens are unknown, which is over {MOST_UNKNOWN:.1%}: ")
        more = "a higher `character_coverage` has more of its characters"
        found[-1] += "the given vocabulary lacks some of its characters" if is_given else more
    return "; ".join(found) or None
