"""What is known of languages: their codes, scripts, and how models for language identification call them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
from fontTools.unicodedata import script as script_of
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.cleaning.characters import WIDE, scripts, wide

_TABLE = Path(__file__).with_name("languages.yaml")
_SCRIPT = re.compile(r"_([A-Z][a-z]{3})(?:_|$)")
_JOINED = {
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
    "Hans": ("Hani", "Bopo"),
    "Hant": ("Hani", "Bopo"),
}
_ENGLISH = frozenset(["the", "of", "and", "to", "that", "with", "this", "are", "was", "have", "from", "by", "be", "or"])
_SOME_ENGLISH = 0.04  # share of these words above which a text is English: of 100 words of English prose they are 20

FOREIGN = 1 << 32  # counts of other scripts' letters are so far above those of the own ones in one sum of both


@lru_cache(1024)
def _subtags(code: str) -> tuple[str, ...]:
    """The parts of a language's code, however it is spelled: `de_DE`, `de-DE` and `DE-de` have the same."""
    return tuple(re.split("[-_]", code.strip().lower()))


def is_same_language(code: str, lang: str) -> bool:
    """Whether a file's code may mean the language: their first parts are the same, `en` and `en_XX` or `en-GB`."""
    return _subtags(code)[0] == _subtags(lang)[0]


def best_match(codes: Sequence[str], lang: str) -> str | None:
    """Of the codes in a file the one that means the language: the same code if there is one."""
    same = [code for code in codes if is_same_language(code, lang)]
    return next((code for code in same if _subtags(code) == _subtags(lang)), same[0] if same else None)


def looks_like(text: str, lang: str) -> float:
    """From 0 to 1, how much a text looks like the language: its letters, and for English its most common words."""
    own = scripts_of(lang)
    of_text = Counter(filter(str.isalpha, text))
    in_script = sum(count for letter, count in of_text.items() if not own or script_of(letter) in own)
    words = re.findall(r"\w+", text.lower())
    share = sum(word in _ENGLISH for word in words) / max(len(words), 1)
    is_english = min(share / _SOME_ENGLISH, 1.0)
    fits: float = in_script / max(of_text.total(), 1)
    return fits * (is_english if is_same_language(lang, "en") else 1 - is_english)


class Language(NamedTuple):
    """A row of `languages.yaml`."""

    scripts: tuple[str, ...]
    names: tuple[str, ...]


@cache
def languages() -> dict[str, Language]:
    """The table, by plain code."""
    rows = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return {code: Language(tuple(row["scripts"]), tuple(row["names"])) for code, row in rows.items()}


def scripts_of(lang: str) -> tuple[str, ...]:
    """The scripts of a language: the one that its code names (`sr_Latn`), those of the table, or none if it has no such
    row. Codes of ISO 15924 for several scripts are taken apart: Japanese is written in `Hani`, `Hira` and `Kana`."""
    if named := _SCRIPT.search(lang):
        return _JOINED.get(named[1], (named[1],))
    row = languages().get(lang.split("_")[0])
    return row.scripts if row else ()


@cache
def letters(lang: str) -> NDArray[np.int64]:
    """What every code point adds to a text's letters: 1 for a letter of the language's scripts, `WIDE` for a wide one,
    `FOREIGN` times as much for one of other scripts; 0 for all if nobody knows the language's scripts."""
    numbers, of_letters = scripts()
    own = [numbers[script] for script in scripts_of(lang) if script in numbers]
    of_script = np.full(len(numbers) + 1, FOREIGN if own else 0)
    of_script[0], of_script[own] = 0, 1
    added: NDArray[np.int64] = of_script[of_letters] * np.where(wide(), WIDE, 1)
    return added


def names_of(lang: str) -> frozenset[str]:
    """What a model may call this language: its code, and the names of the table."""
    base = lang.split("_")[0]
    row = languages().get(base)
    return frozenset((base, *(row.names if row else ())))


def name_in(label: str) -> str:
    """The language in a model's label: `__label__de` or `__label__deu_Latn`."""
    return label.removeprefix("__label__").split("_")[0]
