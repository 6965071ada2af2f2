"""The work folder: results of stages, each under a key of its inputs, complete or absent."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.data.corpora.data_dir import disk_errors_of
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, write_text

FORMAT = 5  # raised whenever the same input would give other blocks: those made before are then made anew
_SUMMARY = "summary"


def key_of(**made_from: object) -> str:
    """Return a key for results that depend only on these values."""
    return hash_of({"format": FORMAT, "made_from": made_from})


def hash_of(values: Mapping[str, object]) -> str:
    """Return a hash of values, in hexadecimal."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]


def plain(value: Any) -> Any:
    """Return a value for JSON: enum members by name, paths as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value.name if isinstance(value, Enum) else str(value) if isinstance(value, Path) else value


@dataclass(frozen=True)
class Stage:
    """Results of a stage for one input: a file per block, and a result at the end."""

    folder: Path

    @property
    def key(self) -> str:
        """Return the stage's key, the folder's name."""
        return self.folder.name

    def block(self, number: int) -> Path:
        """Return the path of a block's file."""
        return self.folder / f"{number:06d}.npz"

    def result(self) -> dict[str, Any] | None:
        """Return the result given to `finish`; None before that."""
        path = self.folder / "done.json"
        return dict(read_json(path)) if path.exists() else None

    def finish(self, result: Mapping[str, object]) -> None:
        """Record that all files are complete, with a result."""
        write_text(self.folder / "done.json", json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


class WorkFolder:
    """The folder `.DATA.work` beside DATA, locked by one run within `held`."""

    def __init__(self, out: Path) -> None:
        self.out = Path(os.path.realpath(out))
        self.path = self.out.with_name(f".{self.out.name}.work")
        self._used: set[str] = set()
        self._alone: dict[Path, set[str]] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder within (UserError: another run has it, or it cannot be made)."""
        if self.path.is_symlink():
            raise UserError(
                f"`{self.path}` must be a folder, but is a link, which could lead to another one; remove it."
            )
        with disk_errors_of(self.out):
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"`{self.out}` is being prepared by another run; wait for its end.") from error
            yield
        finally:
            os.close(descriptor)
            with suppress(OSError):  # not empty if steps are finished
                self.path.rmdir()

    def stage(self, name: str, **made_from: object) -> Stage:
        """Return the stage that depends on these values."""
        folder = self.path / f"{name}-{key_of(**made_from)}"
        folder.mkdir(exist_ok=True)
        self._used.add(folder.name)
        return Stage(folder)

    def keep_alone(self, files: Iterable[Path]) -> None:
        """Make `remove_others` keep only these files in their stages' folders."""
        for path in files:
            self._alone.setdefault(path.parent, set()).add(path.name)

    def remove_others(self) -> None:
        """Remove files that this run did not use: of changed or removed corpora, and of killed processes."""
        others = [path for folder, names in self._alone.items() for path in folder.iterdir() if path.name not in names]
        for path in [*others, *self.path.glob("*/.*.partial")]:
            path.unlink(missing_ok=True)
        for folder in self.path.iterdir():
            if folder.is_dir() and folder.name not in self._used:
                shutil.rmtree(folder)


def save(path: Path, summary: Mapping[str, object], **arrays: NDArray[Any]) -> None:
    """Write a block's file atomically; a file damaged by a power cut is made again."""
    text = np.frombuffer(json.dumps(summary, ensure_ascii=False).encode(), np.uint8)
    members: dict[str, Any] = {_SUMMARY: text, **arrays}
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        with open(partial, "wb") as file:
            np.savez(file, **members)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def is_saved(path: Path) -> bool:
    """Return whether a block's file exists and is no fragment."""
    return zipfile.is_zipfile(path)


class Saved:
    """A block's file, whose arrays are read on request, in a `with` statement (UserError: it is damaged)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> Saved:
        with self._as_user_error():
            self._file = np.load(self._path)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getitem__(self, name: str) -> NDArray[Any]:
        with self._as_user_error():
            array: NDArray[Any] = self._file[name]
        return array

    def __contains__(self, name: str) -> bool:
        return name in self._file

    @property
    def summary(self) -> dict[str, Any]:
        """Return the summary saved with the block."""
        return dict(json.loads(self[_SUMMARY].tobytes()))

    def lines(self, name: str) -> list[str]:
        """Return the sentences of an array made by `packed`."""
        count, text = int(self[f"{name}_count"]), self[name].tobytes().decode()
        return text.split("\n") if count else []

    def some_lines(self, name: str, rows: NDArray[np.int64]) -> list[str]:
        """Return the lines in these rows, in order, without decoding the others."""
        text = self[name] if len(rows) else np.zeros(0, np.uint8)
        ends = np.append(np.flatnonzero(text == ord("\n")), len(text))
        starts = np.append(0, ends[:-1] + 1)
        return [text[start:end].tobytes().decode() for start, end in zip(starts[rows], ends[rows], strict=True)]

    @contextmanager
    def _as_user_error(self) -> Iterator[None]:
        try:
            yield
        except (zipfile.BadZipFile, ValueError, EOFError, KeyError, FileNotFoundError) as error:
            raise UserError(
                f"`{self._path}` must be a whole file of an earlier stage, but is damaged; remove `{self._path.parent}`"
                " to make it again."
            ) from error


def summary_of(path: Path) -> dict[str, Any]:
    """Return the summary saved with a block."""
    with Saved(path) as saved:
        return saved.summary


def packed(name: str, lines: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return sentences without line feeds as arrays to `save`."""
    return {name: np.frombuffer("\n".join(lines).encode(), np.uint8), f"{name}_count": np.array(len(lines))}
