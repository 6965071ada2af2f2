"""Helpers of entries that name data sets."""

from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.core.typed import structured
from fairseq_mtmoe.corpora.recipes.codes import filled_pairs, plain_pair
from fairseq_mtmoe.corpora.recipes.schema import ARCHIVE, CHECKED, Langs, Pair, with_lists

Fields = dict[str, Any]  # an entry of a recipe's `corpora`


@dataclass(frozen=True)
class Choice:
    """The fields that say which data sets of an index an entry stands for."""

    __pydantic_config__: ClassVar = CHECKED

    pair: Pair | None = None
    langs: Langs = field(default_factory=dict)
    limit: int | None = None

    def pairs(self, where: str) -> list[tuple[str, str]]:
        """Return source and target of each pair (UserError: there is none)."""
        if not self.pair or not (pairs := list(filled_pairs(plain_pair(self.pair), self.langs))):
            rule = "a pair such as en-xx, and enough languages in `langs`"
            raise_invalid(f"{where}: pair", rule, self.pair)
        return pairs


def choice_of(where: str, entry: Fields) -> Choice:
    """Return an entry's fields that say which data sets it stands for.

    Raises `UserError` if one is wrong.
    """
    chosen: Fields = {key: entry[key] for key in ("pair", "langs", "limit") if key in entry}
    choice = structured(Choice, with_lists(chosen), where)
    if "langs" in entry and not choice.langs:
        raise_invalid(f"{where}: langs", "at least one language", entry["langs"])
    return choice


def names_in(where: str, index: str, entry: Fields) -> list[str]:
    """Return the data sets that an entry names (UserError: one is no name)."""
    names = entry[index] if isinstance(entry[index], list) else [entry[index]]
    if not names or not all(isinstance(name, str) and name for name in names):
        rule = "the name of a data set, or a list of names"
        raise_invalid(f"{where}: {index}", rule, entry[index])
    return names


def place_of(address: str, file_name: str = "") -> str:
    """Return where an address' file lies below RAW: `HOST/PATH`.

    file_name: a name for addresses that end with a slash.
    """
    parts = urlsplit(address)
    path = unquote(parts.path).strip("/")
    if parts.path.endswith("/") and file_name:
        path = f"{path}/{file_name}"
    if parts.query:
        path = f"{path}_{parts.query}"
    return f"{parts.hostname}/{path}".replace(ARCHIVE, "_")
