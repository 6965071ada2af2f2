"""What files hold, as a hash each; of raw files read once, and again when one has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fairseq_mtmoe.data.corpora.engine.progress import shown
from fairseq_mtmoe.data.corpora.raw_files import Item, check_sums
from fairseq_mtmoe.data.corpora.readers.unpacking import split_member
from fairseq_mtmoe.data.corpora.recipes.schema import ARCHIVE
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, write_text

MANIFEST = "manifest.json"
MEGABYTE = 1e6


def write_manifest(folder: Path, raw: Mapping[str, Mapping[str, str]]) -> None:
    """Write down what each file of a data directory holds, as a hash, and what it was made of.

    Args:
        folder: with all of its other files.
        raw: by corpus the hashes of its files.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    content = {"raw": raw, "files": _hashes(folder, names, sha256)}
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (folder / MANIFEST).write_text(text, encoding="utf-8", newline="\n")


def find_damaged(folder: Path, digest: Callable[[Path], str]) -> str | None:
    """The first file of a data directory that does not hold what it did when its manifest was written, if there is one.

    Args:
        digest: gives the SHA-256 of a file.
    """
    path = folder / MANIFEST
    if not path.exists():  # of an earlier version
        return None
    try:
        expected = dict(read_json(path)["files"])
    except (ValueError, KeyError, TypeError):
        return MANIFEST
    found = _hashes(folder, expected, digest)
    return next((name for name, sha in expected.items() if found[name] != sha), None)


def _hashes(folder: Path, names: Iterable[str], digest: Callable[[Path], str]) -> dict[str, str]:
    numbers = {name: (folder / name).stat().st_ino for name in names}
    once = {number: folder / name for name, number in numbers.items()}  # files may have several names
    pool = ThreadPoolExecutor()  # hashing lets other threads run
    try:
        known = dict(zip(once, pool.map(digest, once.values()), strict=True))
    finally:
        pool.shutdown(cancel_futures=True)
    return {name: known[number] for name, number in numbers.items()}


def sha256(path: Path) -> str:
    """Of all that a file holds."""
    return _digest(path, "sha256")


def _digest(path: Path, name: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, name).hexdigest()


class Digests:
    """Hashes of files, kept in a file of the work folder with the files' size, times and number.

    Args:
        path: that file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, object]] = {}
        if path.exists():
            try:
                self._known = dict(read_json(path))
            except (UserError, ValueError, TypeError):  # of a disk that was full, say: hashed anew
                self._known = {}

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
        return [self._of(path) for path in paths]

    def _of(self, path: Path) -> str:
        place, member = split_member(path)
        return self.of_file(place) + ("" if member is None else f"{ARCHIVE}{member}")

    def check(self, file: Path, item: Item) -> None:
        """See that a file is what a recipe says of it: also one that a person put there, or that changed since it came.

        Raises:
            UserError: it is something else.
        """
        names = ["sha256", *(["md5"] if item.md5 else [])]
        check_sums(file, {name: self.of_file(file, name) for name in names}, item)

    def of_file(self, path: Path, name: str = "sha256") -> str:
        """A hash of what a file holds."""
        if not self._is_known(path):
            self._known[str(path.resolve())] = {**_about(path)}
        known = self._known[str(path.resolve())]
        if name not in known:
            known[name] = _digest(path, name)
        return str(known[name])

    def _is_known(self, path: Path) -> bool:
        about, known = _about(path), self._known.get(str(path.resolve()), {})
        return {name: known.get(name) for name in about} == about

    def keep(self) -> None:
        """Write down what is known."""
        write_text(self._path, json.dumps(self._known, indent=1, sort_keys=True) + "\n")


def _about(path: Path) -> dict[str, int]:
    """What changes with a file: its time may be kept (`cp -p`, `rsync -t`), but not when the disk was told of that, and
    another file in its place has another number."""
    status = path.stat()
    return {
        "bytes": status.st_size,
        "changed": status.st_mtime_ns,
        "told": status.st_ctime_ns,
        "number": status.st_ino,
    }
