"""Resource tiers of language pairs, by training size ("Tricks for Training Sparse …", §3) or from `tiers.json`."""

import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from fairseq_mtmoe.errors import UserError, raise_invalid, visible
from fairseq_mtmoe.io.files import read_json
from fairseq_mtmoe.io.typed import fault

logger = logging.getLogger(__name__)

TIERS = ("high", "mid", "low")
FROM_LOW = TIERS[::-1]  # the order in tables and charts
FILE_NAME = "tiers.json"
TIER_RULE = (
    "Tiers: high has at least half as many training sentences as the largest pair, low under an eighth, unless a "
    "recipe or tiers.json gives the tier of a pair."
)


def load_tiers(
    data_dir: str | Path, sizes: Mapping[str, int], languages: Collection[str] | None = None
) -> dict[str, str]:
    """Return pairs' tiers by `tiers.json`, else by the sentences in `sizes` (0: no tier).

    With `languages`, warn of names in the file that are neither of these nor in `sizes`.
    """
    path = Path(data_dir) / FILE_NAME
    tiers = read_tiers(path) if os.path.lexists(path) else {}
    named = {name: tier for tier, names in tiers.items() for name in names}
    if languages is not None:
        known = {lang for pair in sizes for lang in pair.split("-")}.union(languages)
        if unknown := [name for name in named if not known.issuperset(name.split("-"))]:
            shown = visible(", ".join(unknown))
            logger.warning(f"{path} names {shown}, which are not language pairs or languages of the data")
    largest = max(sizes.values(), default=0)
    found = {
        pair: named.get(pair) or named.get(pair.split("-")[-1]) or (tier_of_size(size, largest) if size else None)
        for pair, size in sizes.items()
    }
    return {pair: tier for pair, tier in found.items() if tier}


def tier_of_size(size: int, largest: int) -> str:
    """Return `high` for at least half the sentences of the largest pair, `low` for less than an eighth, else `mid`."""
    if 2 * size >= largest:
        return "high"
    return "low" if 8 * size < largest else "mid"


def read_tiers(path: Path) -> dict[str, list[str]]:
    """Return the pairs or target languages of each tier in a file such as `tiers.json`."""
    content = read_json(path, "a file of tiers")
    if fault(content, dict[str, list[str]]) is not None:
        raise UserError(f"`{path}` must map high, mid and low to lists of language pairs, but does not.")
    for key in content:
        if key not in TIERS:
            raise_invalid(f"every key of {path}", f"one of {', '.join(TIERS)}", key)
    return dict(content)
