"""What a recipe wants below RAW: files with an address, and files that a person gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from urllib.parse import urlsplit

from fairseq_mtmoe.data.corpora.recipes.parts import Corpus


@dataclass
class Item:
    """A file below RAW that corpora are in, alone or as members of it.

    Attributes:
        file: its path below RAW.
        address: where it is; empty for one that a person gets.
        sha256: as published, or empty; likewise `md5`, and `size` in bytes, or None.
        licence: of the corpora in it.
        by_hand: how a person gets it.
        corpora: whose it is.
    """

    file: str
    address: str = ""
    sha256: str = ""
    md5: str = ""
    size: int | None = None
    licence: str = ""
    by_hand: str = ""
    corpora: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        """That of the address."""
        return urlsplit(self.address).hostname or ""


def items_of(corpora: Sequence[Corpus]) -> list[Item]:
    """The files of these corpora, each once, in their order; what one leaves unsaid of a shared file another says."""
    items: dict[str, Item] = {}
    for corpus in corpora:
        if corpus.is_open:  # whatever files are there
            continue
        known = zip_longest(corpus.downloads, corpus.address, corpus.sha256, corpus.md5, corpus.bytes)
        for file, address, sha256, md5, size in known:
            item = items.setdefault(file, Item(file))
            item.address = item.address or address or ""
            item.sha256 = item.sha256 or sha256 or ""
            item.md5 = item.md5 or md5 or ""
            item.size = item.size or size
            item.licence = item.licence or corpus.licence
            item.by_hand = item.by_hand or corpus.by_hand
            item.corpora.append(corpus.name)
    return list(items.values())
