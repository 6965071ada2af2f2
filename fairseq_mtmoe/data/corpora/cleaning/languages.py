"""What cleaning knows of languages: their scripts, and how models for language identification call them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml
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
_LABEL = "__label__"

FOREIGN = 1 << 32
"""Counts of other scripts' letters are so far above those of the own ones in one sum of both."""


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
    return label.removeprefix(_LABEL).split("_")[0]
