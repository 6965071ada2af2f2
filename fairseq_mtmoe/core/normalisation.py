"""Normalisation of lines.

Text that a model learns from and text that it is given later are normalised alike.
"""

import itertools
import re
import sys
import unicodedata
from functools import cache
from typing import Literal

# Control characters that are no white space, soft hyphens, byte order marks.
# Joiners are letters to some scripts: kept.
INVISIBLE = re.compile("[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\ufeff]")


def normalise(text: str) -> str:
    """Return a line in NFC with single spaces.

    Control and invisible formatting characters are removed.
    """
    return " ".join(normal_form("NFC", INVISIBLE.sub("", text)).split())


def normal_form(form: Literal["NFC", "NFKC"], text: str) -> str:
    """Return a Unicode normal form.

    Marks on a character are processed 30 at a time (annex 15), or it takes days.
    """
    if len(text) < 1000:
        return unicodedata.normalize(form, text)
    cuts = [match.end() for match in _long_marks().finditer(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)])]
    return "".join(unicodedata.normalize(form, piece) for piece in pieces)


@cache
def _long_marks() -> re.Pattern[str]:
    """Return a pattern for 30 combining marks that are followed by another."""
    marks = "".join(
        chr(code) for code in range(sys.maxunicode + 1) if unicodedata.combining(chr(code))
    )
    return re.compile(f"[{marks}]{{30}}(?=[{marks}])")
