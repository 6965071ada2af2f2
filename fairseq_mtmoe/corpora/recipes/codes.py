"""Language codes in recipes: plain ones and mBART's.

A plain one is `de`, and mBART's is `de_DE`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from itertools import combinations

from fairseq_mtmoe.translation.data.languages import MBART50

CODE = re.compile(r"[a-z]{2,3}(_[A-Za-z0-9]+)*")  # in either spelling, or another, such as `pt_BR`
OPEN = ("xx", "yy")  # any language, in a pair


class Spelling(Enum):
    """Spelling of language codes in a data directory."""

    plain = "plain"  # de
    mbart = "mbart"  # de_DE


_MBART_OF = {code.split("_")[0]: code for code in MBART50}
PLAIN_CODES = tuple(_MBART_OF)
_PLAIN_OF = {code: plain for plain, code in _MBART_OF.items()}


def plain_code(code: str) -> str:
    """Return `de` for `de_DE` and for `de`.

    Codes that mBART lacks are returned unchanged.
    """
    return _PLAIN_OF.get(code, code)


def mbart_code(code: str) -> str:
    """Return `de_DE` for `de` and for `de_DE`.

    Codes that mBART lacks are returned unchanged.
    """
    return _MBART_OF.get(code, code)


def is_known(code: str) -> bool:
    """Return whether ISO 639 has the language of a code, such as `de` of `de_DE`."""
    from langcodes import Language  # large tables

    return Language.get(code.split("_")[0]).is_valid()


def each_code(pair: str, change: Callable[[str], str]) -> str:
    """Return a pair with both codes changed by a function."""
    return "-".join(map(change, pair.split("-")))


def plain_pair(pair: str) -> str:
    """Return a pair with plain codes."""
    return each_code(pair, plain_code)


def reversed_pair(pair: str) -> str:
    """Return `de-en` for `en-de`."""
    return "-".join(reversed(pair.split("-")))


def is_pair(pair: str) -> bool:
    """Return whether a text is a pair of two different languages."""
    codes = pair.split("-")
    is_two = len(codes) == 2 and all(map(CODE.fullmatch, codes))
    return is_two and plain_code(codes[0]) != plain_code(codes[1])


def filled_pairs(pair: str, langs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield source and target of each pair that a pattern stands for.

    `en-xx` has a pair for each language, and `xx-yy` one for every two of them.
    """
    sides = pair.split("-")
    holes = [lang for lang in sides if lang in OPEN]
    for chosen in combinations(langs, len(holes)):
        codes = dict(zip(holes, chosen, strict=True))
        source, target = (codes.get(lang, lang) for lang in sides)
        yield source, target


def matches(pair: str, pattern: str) -> bool:
    """Return whether a pair is the pattern's, in which `xx` and `yy` are any language."""
    sides = zip(pair.split("-"), pattern.split("-"), strict=True)
    return all(wanted in OPEN or lang == wanted for lang, wanted in sides)
