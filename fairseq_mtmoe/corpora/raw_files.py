"""The files of a recipe below RAW, and their verification.

They are verified by published checksums, or by a record beside each file.
"""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from urllib.parse import urlsplit

from fairseq_mtmoe.core.digest import digest_of_file
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_json, regular_file, write_text
from fairseq_mtmoe.core.typed import structured
from fairseq_mtmoe.corpora.engine.workers import MEGABYTE, Progress
from fairseq_mtmoe.corpora.readers.unpacking import split_member
from fairseq_mtmoe.corpora.recipes.schema import ARCHIVE, Corpus


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
            entries = {
                "address": address,
                "sha256": sha256,
                "md5": md5,
                "size": size,
                "licence": corpus.licence,
                "by_hand": corpus.by_hand,
            }
            for name, value in entries.items():
                if value and not getattr(item, name):
                    setattr(item, name, value)
            item.corpora.append(corpus.name)
    return list(items.values())


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
    is_known = record and (record.size, record.changed) == (stat.st_size, stat.st_mtime_ns)
    if not is_known or (record and item.sha256 not in ("", record.sha256)):
        write_record(file, record.address if record else "", check_file(file, item))
    return True


def check_file(file: Path, item: Item, digest: Callable[[Path, str], str] = digest_of_file) -> str:
    """Return a file's SHA-256.

    Raises `UserError` if the file differs from the published or recorded one.
    """
    sha256, wrong = mismatch(file, item, file, digest)
    if wrong:
        is_same_size = item.size in (None, file.stat().st_size)
        is_replaced = _read_record(file) and not item.sha256 and not item.md5 and is_same_size
        or_else = ""
        if is_replaced:
            or_else = f" (or delete `{record_path(file).name}` to accept it as it is now)"
        raise UserError(
            f"`{file}` is not the expected file ({wrong});"
            f" delete or replace it{or_else}, and run again."
        )
    return sha256


def mismatch(
    content: Path, item: Item, file: Path, digest: Callable[[Path, str], str] = digest_of_file
) -> tuple[str, str]:
    """Return the SHA-256 of `content`, and its difference from `file`.

    The difference from the expected file is empty if there is none.
    """
    size = content.stat().st_size
    sums = {"sha256": digest(content, "sha256")}
    if item.md5:
        sums["md5"] = digest(content, "md5")
    sha256 = sums["sha256"]
    if item.size is not None and size != item.size:
        return sha256, f"{size:,} bytes, not the published {item.size:,}"
    for name, digest_found in sums.items():
        published = getattr(item, name)
        if published and digest_found != published:
            return sha256, f"{name} {digest_found}, not the published {published}"
    record = _read_record(file)
    if not item.sha256 and not item.md5 and record and sha256 != record.sha256:
        return sha256, f"sha256 {sha256}, not {record.sha256} as at the first download"
    return sha256, ""


class Digests:
    """Cache of raw files' hashes, with size, times and inode.

    A changed file is read again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, object]] = {}
        # If the cache is missing or damaged, all files are hashed again.
        with suppress(UserError, ValueError, TypeError):
            self._known = dict(read_json(path))

    def learn(self, paths: Iterable[Path]) -> None:
        """Hash the files that are not cached yet, several at a time, with progress."""
        files = (split_member(path)[0] for path in paths)
        megabytes = {
            file: round(file.stat().st_size / MEGABYTE)
            for file in files
            if not self._is_known(file)
        }
        if not megabytes:
            return
        try:
            with (
                Progress().step("Hashing", sum(megabytes.values()), "MB") as step,
                ThreadPoolExecutor() as pool,
            ):
                for file, _ in zip(megabytes, pool.map(self.of_file, megabytes), strict=True):
                    step.advance(megabytes[file])
        finally:
            self.keep()

    def of(self, paths: Iterable[Path]) -> list[str]:
        """Return each file's SHA-256.

        For a member of an archive, it is the archive's with the member's name.
        """
        hashes = []
        for file, name in map(split_member, paths):
            member = "" if name is None else f"{ARCHIVE}{name}"
            hashes.append(self.of_file(file) + member)
        return hashes

    def of_file(self, path: Path, name: str = "sha256") -> str:
        """Return a file's hash, from the cache if the file has not changed."""
        if not self._is_known(path):
            self._known[str(path.resolve())] = {**_about(path)}
        hashes = self._known[str(path.resolve())]
        if name not in hashes:
            hashes[name] = digest_of_file(path, name)
        return str(hashes[name])

    def _is_known(self, path: Path) -> bool:
        return _about(path).items() <= self._known.get(str(path.resolve()), {}).items()

    def keep(self) -> None:
        """Write the cache."""
        write_text(self._path, json.dumps(self._known, indent=1, sort_keys=True) + "\n")


def _about(path: Path) -> dict[str, int]:
    """Return a file's size, times and inode.

    `cp -p` keeps the modification time, but not ctime and inode.
    """
    status = path.stat()
    return {
        "bytes": status.st_size,
        "changed": status.st_mtime_ns,
        "told": status.st_ctime_ns,
        "number": status.st_ino,
    }
