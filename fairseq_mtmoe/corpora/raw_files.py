"""The files of a recipe below RAW, and their verification.

They are verified by published checksums, or by a record beside each file.
"""

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fairseq_mtmoe.core.digest import digest_of_file
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_json, regular_file, write_text
from fairseq_mtmoe.core.typed import structured
from fairseq_mtmoe.corpora.engine.workers import Progress
from fairseq_mtmoe.corpora.recipes.schema import Corpus


@dataclass
class Item:
    """A file below RAW with one or more corpora, or an archive of their files."""

    file: str  # path below RAW
    address: str = ""  # URL; empty for a file to get by hand
    sha256: str = ""  # as published, or empty
    md5: str = ""
    size: int | None = None  # in bytes
    licence: str = ""  # of the corpora in it
    by_hand: str = ""  # how to get it by hand
    corpora: list[str] = field(default_factory=list)  # names of the corpora in it

    @property
    def host(self) -> str:
        """Return the URL's host; empty without a URL."""
        return urlsplit(self.address).hostname or ""


def items_of(corpora: Sequence[Corpus]) -> list[Item]:
    """Return the corpora's files, each once, in order.

    Corpora complete each other's entries for shared files.

    Raises `UserError` if they have different checksums or sizes.
    """
    items: dict[str, Item] = {}
    for corpus in corpora:
        if corpus.is_open:  # its files are found below RAW
            continue
        rows = zip_longest(
            corpus.downloads, corpus.address, corpus.sha256, corpus.md5, corpus.bytes
        )
        for file, address, sha256, md5, size in rows:
            item = items.setdefault(file, Item(file))
            _check_published(item, corpus.name, sha256=sha256, md5=md5, size=size)
            item.address = item.address or address or ""
            item.sha256 = item.sha256 or sha256 or ""
            item.md5 = item.md5 or md5 or ""
            item.size = item.size or size
            item.licence = item.licence or corpus.licence
            item.by_hand = item.by_hand or corpus.by_hand
            item.corpora.append(corpus.name)
    return list(items.values())


def read_items_of(corpora: Sequence[Corpus]) -> list[Item]:
    """Return the files that corpora are read from, each once."""
    items = {item.file: item for item in items_of(corpora)}
    files = dict.fromkeys(chain.from_iterable(corpus.needed for corpus in corpora))
    return [items.get(file, Item(file)) for file in files]


def _check_published(item: Item, corpus: str, **published: Any) -> None:
    """Raise `UserError` if another corpus has another checksum or size of a file."""
    for name, value in published.items():
        known = getattr(item, name)
        if known and value and known != value:
            raise UserError(
                f"`{item.file}` has two values of {name} in the recipe, {known} for "
                f"{item.corpora[0]} and {value} for {corpus}: give the right one to both."
            )


@dataclass(frozen=True)
class Record:
    """State of a file when it was complete."""

    address: str  # URL; empty for a file put there by hand
    sha256: str
    size: int  # in bytes
    # Modification time in nanoseconds; while it is the same, the file is not read again.
    changed: int


def record_path(file: Path) -> Path:
    """Return the path of a file's record."""
    return file.with_name(f"{file.name}.origin.json")


def _read_record(file: Path) -> Record | None:
    """Return a file's record; None if it is missing or damaged."""
    with suppress(UserError):
        return structured(Record, read_json(record_path(file)), "the record of a download")
    return None


def write_record(file: Path, address: str, sha256: str) -> None:
    """Write a complete file's record."""
    stat = file.stat()
    record = Record(address, sha256, stat.st_size, stat.st_mtime_ns)
    write_text(record_path(file), json.dumps(asdict(record), indent=1) + "\n")


def is_there(file: Path, item: Item) -> bool:
    """Return whether a file exists, after `check_file` if it changed.

    It changed if its record differs. Raises `UserError` if the file is wrong.
    """
    if not os.path.exists(file):  # unlike `Path.exists`, returns False for names that are too long
        return False
    stat = regular_file(file, "a file of the recipe").stat()
    record = _read_record(file)
    state = record and (record.size, record.changed, item.sha256 or record.sha256)
    if not record or state != (stat.st_size, stat.st_mtime_ns, record.sha256):
        write_record(file, record.address if record else "", check_file(file, item))
    return True


def check_file(file: Path, item: Item) -> str:
    """Return a file's SHA-256.

    Raises `UserError` if the file differs from the published or recorded one.
    """
    sha256, wrong = mismatch(file, item, file)
    if wrong:
        raise UserError(f"`{file}` is not the expected file ({wrong}); delete it or replace it.")
    return sha256


def mismatch(content: Path, item: Item, file: Path) -> tuple[str, str]:
    """Return the SHA-256 of `content`, and how it differs from what `file` must have.

    The latter is empty if it does not.
    """
    size = content.stat().st_size
    sha256 = digest_of_file(content)
    if item.size not in (None, size):
        return sha256, f"{size:,} bytes, not the published {item.size:,}"
    for name in ("sha256", "md5"):
        published = getattr(item, name)
        digest = sha256 if name == "sha256" or not published else digest_of_file(content, name)
        if published and published != digest:
            return sha256, f"{name} {digest}, not the published {published}"
    record = _read_record(file)
    if not item.sha256 and not item.md5 and record and sha256 != record.sha256:
        rule = f"delete `{record_path(file).name}` to accept it"
        return sha256, f"sha256 {sha256}, not {record.sha256} as at the first download: {rule}"
    return sha256, ""


def digests_of(items: Sequence[Item], raw: Path) -> dict[str, str]:
    """Return the SHA-256 of each file by its path below `raw`, after `check_file`."""
    files = [item.file for item in items]
    with Progress().call("Hashing"), ThreadPoolExecutor() as pool:  # hashing releases the GIL
        return dict(zip(files, pool.map(check_file, map(raw.joinpath, files), items), strict=True))
