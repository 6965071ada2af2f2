"""Output directories that are whole or absent, that are not made twice, and not replaced without being asked.

A directory is written beside its destination and moved into place at the end. Its stamp holds a fingerprint of
everything it was made from, and the sizes of its files: while both still hold, there is nothing to do.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_mtmoe.data.corpora.engine.digests import find_damaged, sha256
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, regular_file

logger = logging.getLogger(__name__)

STAMP = "stamp.json"

FORMAT = 2
"""Raised whenever the same input gives other files. 1 was up to 0.1.8, whose vocabulary was trained on another draw of
the same text; what was made with it stays: see `fingerprint`."""

_DISK_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO),
    *(errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG),  # a file where a folder must be, or no name for one
)


def fingerprint(options: Mapping[str, object], files: Iterable[tuple[str, str]], form: int = FORMAT) -> str:
    """A SHA-256 over options, the hashes of the named input files (`content_hash`), and the versions that decide about
    bytes.

    Args:
        form: a `FORMAT`: an earlier one gives the fingerprint of then.
    """
    made_from = {
        **_versions(),
        "format": form,
        "options": dict(options),
        "files": [list(file) for file in files],
    }
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def content_hash(path: Path) -> str:
    """SHA-256 of a file's content; what cannot be read says so when it is read to be used."""
    try:
        return sha256(regular_file(path))
    except (UserError, OSError):
        return "unreadable"


def _versions() -> dict[str, object]:
    return {
        "format": FORMAT,
        "sentencepiece": version("sentencepiece"),
        "unicode": unicodedata.unidata_version,
    }


def write_once(
    out: Path,
    key: str,
    fill: Callable[[Path], None],
    options: Mapping[str, object],
    overwrite: bool = False,
    earlier: Collection[str] = (),
    digest: Callable[[Path], str] = sha256,
    overwriting: str = "to replace it",
) -> bool:
    """Make `out` by calling `fill` on an empty directory, unless `out` already has the fingerprint `key`.

    What was made with another key is replaced with `overwrite` only: models may have been trained on it. The stamp
    keeps the `options`, to say then what differs. What earlier versions made from the same has one of the fingerprints
    `earlier`, and stays. What does not hold any more what its manifest says is made again.

    Args:
        digest: gives the SHA-256 of a file.
        overwriting: what `overwrite` is for, for the sentence that names it.

    Returns whether anything was written. On any failure `out` stays as it was and nothing else stays at all.
    Raises `UserError` if `out` holds something else or cannot be written.
    """
    out = Path(os.path.realpath(out))
    made_with = {**_versions(), **options}
    with disk_errors_of(out):
        _recover(out)
        if os.path.lexists(out):
            stamp, present = _own_content(out)
            if stamp["key"] in (key, *earlier):
                damaged = _find_damaged(out, present, stamp["files"], digest)
                if damaged is None:
                    return False
                if stamp["key"] == key:
                    logger.warning(f"`{out / damaged}` is not what was written; all of `{out}` is made again.")
            if stamp["files"] and stamp["key"] != key and not overwrite:
                raise UserError(_refusal(out, stamp["made_with"], made_with, overwriting))
        out.parent.mkdir(parents=True, exist_ok=True)
        with _partial_directory(out) as partial:
            fill(partial)
            stamp = {"key": key, "files": _file_sizes(partial), "made_with": made_with}
            (partial / STAMP).write_text(json.dumps(stamp, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            _swap(partial, out)
    return True


def _find_damaged(
    folder: Path, present: Mapping[str, int], sizes: Mapping[str, int], digest: Callable[[Path], str]
) -> str | None:
    """The first file that is missing, or is not what it was when it was written, if there is one."""
    changed = next((name for name, size in sizes.items() if present.get(name) != size), None)
    return changed or find_damaged(folder, digest)


@contextmanager
def disk_errors_of(out: Path) -> Iterator[None]:
    """Say in a sentence why `out` cannot be written, where that is the system's or the disk's fault.

    Raises:
        UserError: it cannot.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise UserError(f"`{out}` cannot be written: {error.strerror}.") from error


def is_up_to_date(out: Path, key: str, earlier: Collection[str] = ()) -> bool:
    """Whether `out` has one of these fingerprints, and is whole. Raises `UserError` if it holds something else."""
    if not os.path.lexists(out):
        return False
    stamp, present = _own_content(out)
    return stamp["key"] in (key, *earlier) and _find_damaged(out, present, stamp["files"], sha256) is None


def _own_content(out: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """The stamp of `out` and the sizes of its files, all of which the stamp names."""
    if not out.is_dir():
        kind = "a file" if out.is_file() else "none"
        raise UserError(f"`{out}` must be a folder, but is {kind}; give another output folder.")
    stamp = _read_stamp(out)
    present = _file_sizes(out)
    strangers = sorted(set(present) - set(stamp["files"]))
    if strangers:
        raise UserError(
            f"`{out}` must hold nothing but what `mtmoe prepare` wrote, but holds `{strangers[0]}`"
            f" ({len(strangers)} such files in all); move them away or give another output folder."
        )
    return stamp, present


def _refusal(out: Path, before: Mapping[str, object], now: Mapping[str, object], overwriting: str) -> str:
    """Why `out` is not replaced; a stamp of 0.1.0 does not say what it was made with."""
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    how = "from other text" if before else "from other text or with other settings"
    if before and names:
        how = "with " + ", ".join(f"{name} {before.get(name)} (now {now.get(name)})" for name in names)
    return (
        f"`{out}` was made {how}, and models that were trained on it would not fit what would take its place;"
        f" give another output folder, or --overwrite {overwriting}."
    )


def _read_stamp(folder: Path) -> dict[str, Any]:
    try:
        stamp = read_json(folder / STAMP)
        return {"key": str(stamp["key"]), "files": dict(stamp["files"]), "made_with": dict(stamp.get("made_with", {}))}
    except (ValueError, KeyError, TypeError):
        return {"key": "", "files": {}, "made_with": {}}


def _file_sizes(folder: Path) -> dict[str, int]:
    """Size in bytes by relative path, of every file but the stamp itself; -1 of pipes and links that lead nowhere."""
    files = sorted(path for path in folder.rglob("*") if not path.is_dir() and path != folder / STAMP)
    return {path.relative_to(folder).as_posix(): path.stat().st_size if path.is_file() else -1 for path in files}


@contextmanager
def _partial_directory(out: Path) -> Iterator[Path]:
    """An empty directory beside `out`, gone at the end unless it was moved into place. Whoever makes `out` holds its
    work folder, so that no other run has this one."""
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _backup(out: Path) -> Path:
    return out.with_name(f".{out.name}.replaced")


def _swap(partial: Path, out: Path) -> None:
    """Move `partial` to `out`. POSIX replaces an empty directory only, so a full one steps aside first."""
    if out.exists():
        os.rename(out, _backup(out))
    os.rename(partial, out)
    shutil.rmtree(_backup(out), ignore_errors=True)


def _recover(out: Path) -> None:
    """Undo what a run killed between the two moves of `_swap`, or right after them, has left."""
    if _backup(out).exists():
        if out.exists():
            shutil.rmtree(_backup(out))
        else:
            os.rename(_backup(out), out)
