"""The folder of work: results of finished stages, and files between stages."""

import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from fairseq_mtmoe.core.digest import digest_of
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_json, write_text
from fairseq_mtmoe.core.locked import lock
from fairseq_mtmoe.corpora.data_dir import disk_errors_of

# Raised whenever the same input would give other files of a stage, which are then made anew.
FORMAT = 9

Result = TypeVar("Result")


def hash_of(values: object) -> str:
    """Return a hash of values that JSON can hold, in hexadecimal."""
    return digest_of(json.dumps(values, sort_keys=True))[:32]


class WorkFolder:
    """The folder `.DATA.work` beside DATA, locked by one run at a time."""

    def __init__(self, out: Path) -> None:
        self.out = Path(os.path.realpath(out))
        self.path = self.out.with_name(f".{self.out.name}.work")
        self._key = ""  # a hash of all that the stages so far were made from

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder within (UserError: another run has it)."""
        with disk_errors_of(self.out):
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY)
        try:
            lock(descriptor, f"`{self.out}` is being prepared by another run; wait for its end.")
            yield
        finally:
            os.close(descriptor)
            with suppress(OSError):  # it is not empty if a stage has begun
                self.path.rmdir()

    def stage(
        self, name: str, made_from: object, kind: Any, make: Callable[[Path], Result]
    ) -> Result:
        """Return what `make` returns; a finished stage is not made again.

        Args:
            name: names the stage's folder and the file with its result.
            made_from: all that decides about the result, besides the stages before.
            kind: the result's type, for JSON.
            make: the stage, given an empty folder for its files.
        """
        self._key = hash_of([FORMAT, self._key, name, str(self.path), made_from])
        folder = self.path / name
        record = self.path / f"{name}.json"
        adapter: TypeAdapter[Result] = TypeAdapter(kind)
        # If the record is missing or damaged, the stage is made again.
        with suppress(ValueError, KeyError, TypeError):
            content = read_json(record)
            if content["key"] == self._key:
                return adapter.validate_python(content["result"])
        record.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        result = make(folder)
        content = {"key": self._key, "result": adapter.dump_python(result, mode="json")}
        write_text(record, json.dumps(content))
        return result


def save(path: Path, **arrays: Any) -> None:
    """Write arrays to a file, completely or not at all."""
    path.parent.mkdir(exist_ok=True)
    # Two workers may write the same file if a cluster takes one for lost.
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with open(partial, "wb") as file:
        np.savez(file, **arrays)
    os.replace(partial, path)


def load(path: Path, *names: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of these names that a file has, in this order.

    Raises:
        UserError: it is damaged.
    """
    try:
        with np.load(path) as file:
            return {name: file[name] for name in names if name in file}
    except (zipfile.BadZipFile, ValueError, EOFError, KeyError, FileNotFoundError) as error:
        raise UserError(
            f"`{path}`, which an earlier stage wrote, is damaged; remove the work folder to"
            " repeat that stage."
        ) from error


def packed(lines: Sequence[str]) -> NDArray[np.uint8]:
    """Return sentences without line feeds as an array to `save`."""
    return np.frombuffer("".join(f"{line}\n" for line in lines).encode(), np.uint8)


def lines_of(text: NDArray[np.uint8], rows: NDArray[np.int64]) -> list[str]:
    """Return the sentences in these rows of an array made by `packed`."""
    lines = text.tobytes().decode().split("\n")
    return [lines[row] for row in rows.tolist()]
