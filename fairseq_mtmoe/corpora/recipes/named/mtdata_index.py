"""The index of mtdata: where parallel text is published (Gowda et al. 2021).

The package brings the index, so that no network is needed. mtdata's own cache is not used, because
it is a pickle, and mtdata's own loader also runs modules of the current folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from fairseq_mtmoe.core.errors import UserError, suggestion
from fairseq_mtmoe.corpora.recipes.named.codes import recipe_code

if TYPE_CHECKING:
    from mtdata.entry import Entry
    from mtdata.index import Index

# Groups of data sets whose modules take seconds to read; one module has all other small ones.
_SLOW = {"Flores": ("flores",), "OPUS": ("opus.opus_index", "opus.opus100")}
_FAST = (
    "statmt",
    "paracrawl",
    "tilde",
    "joshua_indian",
    "unitednations",
    "wikimatrix",
    "other",
    "neulab_tedtalks",
    "elrc_share",
    "ai4bharat",
    "eu",
    "linguatools",
    "anuvaad",
    "allenai_nllb",
    "leipzig",
    "huggingface",
)


def entry_of(name: str, where: str) -> Entry:
    """Return a data set by its identifier, such as `OPUS-ccmatrix-v1-eng-hau`.

    Its languages may be in the other order, and in other codes (`Flores-flores200_dev-1-swa-hau`).
    Raises `UserError` if the index has no such data set; the sentence names a similar one.
    """
    entries = _entries_of_group(name.partition("-")[0])
    if name in entries:
        return entries[name]
    langs = _languages_of(name)
    same_languages = [other for other in entries if _languages_of(other) == langs]
    found = [other for other in same_languages if other.split("-")[:3] == name.split("-")[:3]]
    if len(found) == 1:
        return entries[found[0]]
    raise UserError(
        f"`{where}: mtdata` has {name}, which is not in the index of mtdata"
        f"{suggestion(name, same_languages)}: "
        "`mtmoe download --from mtdata --langs en,ha --list` shows what there is for two languages."
    )


def _languages_of(name: str) -> set[str]:
    """Return the languages at the end of an identifier, in a recipe's codes."""
    return set(map(recipe_code, name.split("-")[3:]))


def matching(pattern: str) -> list[str]:
    """Return the identifiers that match a pattern with `*`, in the index's order."""
    group = pattern.partition("-")[0]
    names: list[str] = []
    if "*" not in group:
        names += _entries_of_group(group)
    else:
        for part in (None, *_SLOW):
            names += map(str, _load(part).entries)
    wanted = pattern.replace("[", "[[]").replace("?", "[?]")
    return [name for name in names if fnmatchcase(name, wanted)]


def entries_between(langs: Sequence[str]) -> Iterator[Entry]:
    """Yield the parallel data sets of all pairs of some languages.

    langs: codes as recipes have them.
    """
    wanted = set(langs)
    for group in (None, *_SLOW):
        for entry in _load(group).entries.values():
            codes = [recipe_code(str(lang)) for lang in entry.did.langs]
            if len(codes) == 2 and codes[0] != codes[1] and wanted.issuperset(codes):
                yield entry


def citation(key: str) -> str:
    """Return an entry of mtdata's bibliography, in BibTeX."""
    from mtdata.index import ReferenceDb

    return str(ReferenceDb().get_bibtex(key)).strip()


@cache
def _entries_of_group(group: str) -> dict[str, Entry]:
    """Return the data sets of a group, the first word of their identifiers."""
    index = _load(group if group in _SLOW else None)
    return {str(did): entry for did, entry in index.entries.items() if did.group == group}


@cache
def _load(slow_group: str | None) -> Index:
    """Return the index of a slow group, or of all others (None).

    Raises `UserError` without the package.
    """
    try:
        from mtdata.index import Index
    except ModuleNotFoundError as error:
        raise UserError(
            f"Data sets of mtdata need the Python package {error.name}: run `pip install "
            "'fairseq_mtmoe[corpora]'`."
        ) from error
    index = Index()
    level = logging.root.level
    logging.root.setLevel(logging.WARNING)  # mtdata logs each module
    for name in _SLOW.get(slow_group or "", _FAST):
        import_module(f"mtdata.index.{name}").load_all(index)
    logging.root.setLevel(level)
    return index
