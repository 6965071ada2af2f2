"""The tiers of language pairs, as a recipe or a file says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fairseq_mtmoe.data.corpora.recipes.codes import plain_code
from fairseq_mtmoe.data.corpora.recipes.loading import load_recipe
from fairseq_mtmoe.data.translation.tiers import read_tiers
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_bytes


class NamedTiers:
    """Tiers by pair or language, in any spelling of their codes.

    Args:
        name: a recipe's name or file, or a file such as `tiers.json`.

    Attributes:
        identity: the name, with a digest of what it stands for.

    Raises:
        UserError: there is no such recipe or file, or it names no tier.
    """

    def __init__(self, name: str) -> None:
        if name.endswith(".json"):
            path, tiers = Path(name), read_tiers(Path(name))
        else:
            recipe = load_recipe(name)
            path, tiers = recipe.path, dict(recipe.tiers)
        if not any(tiers.values()):
            raise UserError(f"`--tiers` must be a recipe or a file that names tiers, but {name} does not.")
        self.identity = f"{name} {hashlib.sha256(read_bytes(path)).hexdigest()[:8]}"
        self._tiers = {_plain(member): tier for tier, members in tiers.items() for member in members}

    def of(self, pairs: Sequence[str]) -> dict[str, str]:
        """The tiers of those pairs that it names: by the pair, else by its target, else by its source."""
        found = {}
        for pair in pairs:
            source, _, target = pair.partition("-")
            names = [_plain(name) for name in (pair, target, source)]
            tier = next((self._tiers[name] for name in names if name in self._tiers), None)
            if tier is not None:
                found[pair] = tier
        return found


def _plain(name: str) -> str:
    return "-".join(map(plain_code, name.split("-")))
