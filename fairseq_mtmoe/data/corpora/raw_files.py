"""What a recipe wants below RAW: files with an address, files that a person gets, and what each of them must be.

Of most corpora nobody publishes a checksum. The first download's is recorded in a JSON beside the file (`x.tgz` has
`x.tgz.origin.json`), so that a later one which differs, or a file that was changed on the disk, is found.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from urllib.parse import urlsplit

from fairseq_mtmoe.data.corpora.recipes import Corpus
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, regular_file, write_text

_CHUNK = 1 << 20


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


@dataclass(frozen=True)
class Record:
    """What a file was when it was complete.

    Attributes:
        address: where it was from; empty for one that a person put there.
        sha256: of its content.
        size: in bytes.
        changed: the file's time of modification then, in nanoseconds: while it is the same, the file is not read again.
    """

    address: str
    sha256: str
    size: int
    changed: int


def record_path(file: Path) -> Path:
    """Where the record of a file is."""
    return file.with_name(f"{file.name}.origin.json")


def _read_record(file: Path) -> Record | None:
    """The record of a file; None if there is none, or a damaged one."""
    try:
        record = Record(**read_json(record_path(file), "the record of a download"))
    except (UserError, TypeError):
        return None
    is_whole = isinstance(record.sha256, str) and isinstance(record.size, int) and isinstance(record.changed, int)
    return record if is_whole else None


def write_record(file: Path, address: str, sha256: str) -> None:
    """Record what a complete file is."""
    stat = file.stat()
    record = Record(address, sha256, stat.st_size, stat.st_mtime_ns)
    write_text(record_path(file), json.dumps(asdict(record), indent=1) + "\n")


def is_there(file: Path, item: Item) -> bool:
    """Whether a file is there, and is what it must be. It is read where it changed since that was last seen.

    Raises:
        UserError: it is something else than what is published, or than it was when it came.
    """
    if not os.path.exists(file):  # unlike Path.exists it says of a name that is too long that there is none
        return False
    stat, record = regular_file(file, "a file of the recipe").stat(), _read_record(file)
    is_known = record and (record.size, record.changed) == (stat.st_size, stat.st_mtime_ns)
    if record and is_known and item.sha256 in ("", record.sha256):
        return True
    sums = digests(file)
    check_sums(file, sums, item)
    write_record(file, record.address if record else "", sums["sha256"])
    return True


def check_sums(file: Path, sums: Mapping[str, str], item: Item) -> None:
    """See that a file is what is published or, where nothing is, what it was when it came.

    Raises:
        UserError: it is not.
    """
    size = file.stat().st_size
    if wrong := mismatch(sums, size, item, file):
        is_replaced = _read_record(file) and not item.sha256 and not item.md5 and item.size in (None, size)
        or_else = f" (or delete `{record_path(file).name}`, if it is to be what it is now)" if is_replaced else ""
        raise UserError(
            f"`{file}` is not what it must be ({wrong}); delete or replace it{or_else}, and run this again."
        )


def digests(file: Path) -> dict[str, str]:
    """SHA-256 and MD5 of a file's content."""
    sums = {"sha256": hashlib.sha256(), "md5": hashlib.md5(usedforsecurity=False)}
    with open(file, "rb") as content:
        while chunk := content.read(_CHUNK):
            for digest in sums.values():
                digest.update(chunk)
    return {name: digest.hexdigest() for name, digest in sums.items()}


def mismatch(sums: Mapping[str, str], size: int, item: Item, file: Path) -> str:
    """In what a file differs from what is published or, where nothing is, from its record; empty if in nothing.

    Args:
        file: whose record it is.
    """
    if item.size is not None and size != item.size:
        return f"{size:,} bytes and not the {item.size:,} that are published"
    for name in ("sha256", "md5"):
        published = getattr(item, name)
        if published and sums[name] != published:
            return f"{name} {sums[name]} and not {published}, which is published"
    record = _read_record(file)
    if not item.sha256 and not item.md5 and record and sums["sha256"] != record.sha256:
        return f"sha256 {sums['sha256']} and not {record.sha256}, which it had when it first came"
    return ""
