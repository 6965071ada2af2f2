"""`clean.normalise` for many texts at once: those that need nothing but Unicode's normal form are found in one look."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.clean import INVISIBLE, normal_form, normalise
from fairseq_mtmoe.data.corpora.cleaning.characters import CODES, Columns, table


def normalised(texts: Sequence[str]) -> list[str]:
    """`clean.normalise` of each text, three times as fast."""
    columns = Columns.of(texts)
    spaces = columns.codes == ord(" ")
    # Two spaces together are inside a text, or at one of its ends: columns have a space on either side of a text.
    doubled = np.flatnonzero(spaces[1:] & spaces[:-1]) + 1
    irregular = np.flatnonzero(_irregular()[columns.codes])
    result = [normal_form("NFC", text) for text in texts]
    for row in columns.texts_at(np.concatenate([doubled, irregular])).tolist():
        result[row] = normalise(texts[row])
    return result


@cache
def _irregular() -> NDArray[np.bool_]:
    """White space other than a space, and what `clean.normalise` removes."""
    characters = map(chr, range(CODES))
    return table(ord(one) for one in characters if one != " " and (one.isspace() or INVISIBLE.match(one)))
