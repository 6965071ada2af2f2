"""Resource tiers of language pairs, by training size or from `tiers.json`.

The sizes follow "Tricks for Training Sparse …", §3.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_json
from fairseq_mtmoe.core.typed import fault, one_of

TIERS = ("high", "mid", "low")
FROM_LOW = TIERS[::-1]  # the order in tables and charts
FILE_NAME = "tiers.json"
TIER_RULE = (
    "Tiers: high has at least half as many training sentences as the largest pair,"
    " low under an eighth, unless a recipe or tiers.json gives the tier of a pair."
)


def load_tiers(data_dir: str | Path, sizes: Mapping[str, int]) -> dict[str, str]:
    """Return pairs' tiers by `tiers.json`, else by the sentences in `sizes`.

    A pair with 0 sentences has a tier only by `tiers.json`.
    """
    path = Path(data_dir) / FILE_NAME
    named: dict[str, str] = {}
    if os.path.lexists(path):
        for listed_tier, names in read_tiers(path).items():
            named |= dict.fromkeys(names, listed_tier)
    largest = max(sizes.values(), default=0)
    tiers = {}
    for pair, size in sizes.items():
        tier = named.get(pair) or named.get(pair.split("-")[-1])
        if tier or size:
            tiers[pair] = tier or tier_of_size(size, largest)
    return tiers


def tier_of_size(size: int, largest: int) -> str:
    """Return the tier of a number of sentences: `high`, `low` or `mid`.

    `high` has at least half the sentences of the largest pair, `low` less than an eighth.
    """
    if 2 * size >= largest:
        return "high"
    return "low" if 8 * size < largest else "mid"


def read_tiers(path: Path) -> dict[str, list[str]]:
    """Return the pairs or target languages of each tier in a file.

    The file has the form of `tiers.json`.
    """
    content = read_json(path, "a file of tiers")
    if fault(content, dict[Annotated[str, one_of(TIERS)], list[str]]) is not None:
        raise UserError(f"`{path}` must map high, mid and low to lists of language pairs.")
    return dict(content)
