"""What a recipe wants below RAW, and what each file must be: as published or, else, recorded beside it when it came."""

import json
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from urllib.parse import urlsplit

from fairseq_mtmoe.data.corpora.data_dir import file_hash
from fairseq_mtmoe.data.corpora.engine.workers import shown
from fairseq_mtmoe.data.corpora.readers.unpacking import split_member
from fairseq_mtmoe.data.corpora.recipes.schema import ARCHIVE, Corpus
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, regular_file, write_text

MEGABYTE = 1e6


@dataclass
class Item:
    """A file below RAW that corpora are in, alone or as members of it."""

    file: str  # its path below RAW
    address: str = ""  # where it is; empty for one that a person gets
    sha256: str = ""  # as published, or empty
    md5: str = ""
    size: int | None = None  # in bytes
    licence: str = ""  # of the corpora in it
    by_hand: str = ""  # how a person gets it
    corpora: list[str] = field(default_factory=list)  # whose it is

    @property
    def host(self) -> str:
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
            said = {"address": address, "sha256": sha256, "md5": md5, "size": size}
            for name, value in {**said, "licence": corpus.licence, "by_hand": corpus.by_hand}.items():
                if value and not getattr(item, name):
                    setattr(item, name, value)
            item.corpora.append(corpus.name)
    return list(items.values())


@dataclass(frozen=True)
class Record:
    """What a file was when it was complete."""

    address: str  # where it was from; empty for one that a person put there
    sha256: str
    size: int  # in bytes
    changed: int  # its time of modification then, in nanoseconds: while it is the same, the file is not read again


def record_path(file: Path) -> Path:
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
    stat = file.stat()
    record = Record(address, sha256, stat.st_size, stat.st_mtime_ns)
    write_text(record_path(file), json.dumps(asdict(record), indent=1) + "\n")


def is_there(file: Path, item: Item) -> bool:
    """Whether a file is there, and is what it must be (`check_file`). It is read if it changed since the last look."""
    if not os.path.exists(file):  # unlike Path.exists it says of a name that is too long that there is none
        return False
    stat, record = regular_file(file, "a file of the recipe").stat(), _read_record(file)
    is_known = record and (record.size, record.changed) == (stat.st_size, stat.st_mtime_ns)
    if not is_known or (record and item.sha256 not in ("", record.sha256)):
        write_record(file, record.address if record else "", check_file(file, item))
    return True


def check_file(file: Path, item: Item, digest: Callable[[Path, str], str] = file_hash) -> str:
    """Return the SHA-256 of a file; raise `UserError` if it is not what is published or recorded."""
    sha256, wrong = mismatch(file, item, file, digest)
    if wrong:
        is_same_size = item.size in (None, file.stat().st_size)
        is_replaced = _read_record(file) and not item.sha256 and not item.md5 and is_same_size
        or_else = f" (or delete `{record_path(file).name}`, if it is to be what it is now)" if is_replaced else ""
        raise UserError(
            f"`{file}` is not what it must be ({wrong}); delete or replace it{or_else}, and run this again."
        )
    return sha256


def mismatch(content: Path, item: Item, file: Path, digest: Callable[[Path, str], str] = file_hash) -> tuple[str, str]:
    """Return the SHA-256 of `content`, and in what it differs from what `file` must be; empty if in nothing."""
    size = content.stat().st_size
    sums = {name: digest(content, name) for name in ("sha256", *(["md5"] if item.md5 else []))}
    if item.size is not None and size != item.size:
        return sums["sha256"], f"{size:,} bytes and not the {item.size:,} that are published"
    for name, found in sums.items():
        published = getattr(item, name)
        if published and found != published:
            return sums["sha256"], f"{name} {found} and not {published}, which is published"
    record = _read_record(file)
    if not item.sha256 and not item.md5 and record and sums["sha256"] != record.sha256:
        return sums["sha256"], f"sha256 {sums['sha256']} and not {record.sha256}, which it had when it first came"
    return sums["sha256"], ""


class Digests:
    """Hashes of raw files, kept in a file with their size, times and number: one that has changed is read again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, object]] = {}
        with suppress(UserError, ValueError, TypeError):  # none, or of a disk that was full, say: hashed anew
            self._known = dict(read_json(path))

    def learn(self, paths: Iterable[Path]) -> None:
        """Hash what is not known of files yet, several at a time, with progress."""
        files = list(dict.fromkeys(split_member(path)[0] for path in paths))
        megabytes = {file: round(file.stat().st_size / MEGABYTE) for file in files if not self._is_known(file)}
        if not any(megabytes.values()):
            return
        try:
            with (
                shown(self._path.with_name("log.txt")) as progress,
                progress.step("Hashing", sum(megabytes.values()), "MB") as step,
                ThreadPoolExecutor() as pool,
            ):
                for file, _ in zip(megabytes, pool.map(self.of_file, megabytes), strict=True):
                    step.advance(megabytes[file])
        finally:
            self.keep()

    def of(self, paths: Iterable[Path]) -> list[str]:
        """A SHA-256 for each, of all that is in it: of a member of an archive the archive's, with the member's name."""
        members = map(split_member, paths)
        return [self.of_file(file) + ("" if name is None else f"{ARCHIVE}{name}") for file, name in members]

    def of_file(self, path: Path, name: str = "sha256") -> str:
        if not self._is_known(path):
            self._known[str(path.resolve())] = {**_about(path)}
        known = self._known[str(path.resolve())]
        if name not in known:
            known[name] = file_hash(path, name)
        return str(known[name])

    def _is_known(self, path: Path) -> bool:
        about, known = _about(path), self._known.get(str(path.resolve()), {})
        return {name: known.get(name) for name in about} == about

    def keep(self) -> None:
        write_text(self._path, json.dumps(self._known, indent=1, sort_keys=True) + "\n")


def _about(path: Path) -> dict[str, int]:
    """Return what changes with a file: its time may be kept (`cp -p`), but not its time of change and its number."""
    of = path.stat()
    return {"bytes": of.st_size, "changed": of.st_mtime_ns, "told": of.st_ctime_ns, "number": of.st_ino}
