"""High, mid and low resource: the tiers in which results are reported.

"Tricks for Training Sparse Translation Models", §3, groups its languages by the amount of training data. A data
directory may say itself which pair is in which tier, in `tiers.json`: `{"high": ["en-de"], "mid": ["ro"], "low": […]}`,
pairs or target languages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from fairseq_mtmoe.errors import UserError, must_be

TIERS = ("high", "mid", "low")
FILE_NAME = "tiers.json"


def load_tiers(data_dir: str | Path, sizes: Mapping[str, int]) -> dict[str, str]:
    """The tier of every pair.

    Args:
        data_dir: where `tiers.json` may be.
        sizes: training sentences of each pair ("en-de"). A pair that the file does not name, or every pair without the
            file, is `high` with at least half as many as the largest pair, `low` with less than an eighth, else `mid`;
            one without training data has no tier then.

    Raises:
        UserError: the file is not of the form above.
    """
    path = Path(data_dir) / FILE_NAME
    named = _read(path) if path.is_file() else {}
    largest = max(sizes.values(), default=0)
    tiers = {
        pair: named.get(pair) or named.get(pair.split("-")[-1]) or (tier_of_size(size, largest) if size else None)
        for pair, size in sizes.items()
    }
    return {pair: tier for pair, tier in tiers.items() if tier}


def tier_of_size(size: int, largest: int) -> str:
    """The tier of a pair by its number of training sentences and that of the largest pair."""
    if 2 * size >= largest:
        return "high"
    return "low" if 8 * size < largest else "mid"


def _read(path: Path) -> dict[str, str]:
    try:
        tiers = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"`{path}` must be a JSON file, but cannot be read as one: {error}.") from error
    if not isinstance(tiers, dict) or not all(isinstance(names, list) for names in tiers.values()):
        raise UserError(f"`{path}` must map high, mid and low to lists of language pairs, but does not.")
    for tier in tiers:
        if tier not in TIERS:
            must_be(f"every key of {path}", f"one of {', '.join(TIERS)}", tier)
    return {name: tier for tier, names in tiers.items() for name in names}
