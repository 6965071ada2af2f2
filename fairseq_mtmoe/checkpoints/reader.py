"""A checkpoint file that is opened once: what is checked are the bytes that are read then.

Its name may become another file's at any time, since whoever saves replaces files. Behind a descriptor the file stays.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fairseq_mtmoe.checkpoints import checksum, validation
from fairseq_mtmoe.checkpoints.fallback import damaged
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file

State = dict[str, Any]


class CheckpointFile:
    """An open file of `torch.save`.

    Args:
        path: its name, which is looked up here and never again.
        remedy: what to do where it is damaged, for a sentence; by default to use another checkpoint of the run.

    Raises:
        UserError: there is no such file, or it cannot be read.
    """

    def __init__(self, path: str | Path, remedy: str | None = None) -> None:
        self._path, self._remedy = str(path), remedy
        self._digest: str | None = None
        self._is_verified = False
        with readable(self._path):
            self._file = open(regular_file(path, "a checkpoint file"), "rb")  # noqa: SIM115 (`__exit__` closes it)

    def __enter__(self) -> CheckpointFile:
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; tensors that are mapped stay."""
        self._file.close()

    def verify(self) -> str | None:
        """Read all of it and compare it with its checksums, the first time; returns the digest, see `checksum.verify`.

        Raises:
            UserError: it is truncated or damaged, or cannot be read.
        """
        if not self._is_verified:
            with readable(self._path, is_whole=False):
                try:
                    self._digest = checksum.verify(self._file)
                except checksum.Damaged as error:
                    raise damaged(self._path, self._remedy) from error
            self._is_verified = True
        return self._digest

    def load(self, mapped: bool = False) -> State:
        """The content, once it is verified; `mapped`: tensors are read when they are touched, and not held.

        Raises:
            UserError: it is damaged, or holds what no checkpoint should: see `validation.py`.
        """
        has_checksum = self.verify() is not None
        with readable(self._path, is_whole=has_checksum):
            return validation.read(self._path, self._file, mapped)

    def peek(self) -> State | None:
        """The content without reading its tensors, not verified; None if that cannot be done: loading will say why."""
        return self._unverified

    @functools.cached_property
    def _unverified(self) -> State | None:
        try:
            return validation.read(self._path, self._file, mapped=True)
        except Exception:
            return None

    def write_to(self, target: Any) -> None:
        """Copy all bytes, once they are verified, to another open file.

        Raises:
            UserError: it is damaged.
        """
        self.verify()
        self._file.seek(0)
        shutil.copyfileobj(self._file, target, 1 << 24)


def peek(path: str | Path) -> State | None:
    """`CheckpointFile.peek` of a file; None also where there is none."""
    try:
        with CheckpointFile(path) as file:
            return file.peek()
    except UserError:
        return None


@contextlib.contextmanager
def readable(path: str, is_whole: bool | None = None) -> Iterator[None]:
    """Turn what torch raises while it reads `path` into a `UserError` of one sentence.

    Args:
        path: the file that is read, or that what is handled inside was read from.
        is_whole: whether its checksum is known to be right; None: nobody who knows is here.
    """
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"`{path}` must be a checkpoint file, but there is none.") from error
    except Exception as error:  # whatever damaged bytes lead torch to
        if isinstance(error, pickle.UnpicklingError) and _would_execute(error):
            raise UserError(
                f"`{path}` must hold tensors, plain containers and `argparse.Namespace` alone, but holds other Python "
                "objects, which loading could execute; it was not loaded."
            ) from error
        # EINVAL is torch's word for an archive that ends too early.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise UserError(f"`{path}` must be a readable checkpoint file, but: {error.strerror}.") from error
        raise _unloadable(path, error, _has_checksum(path) if is_whole is None else is_whole) from error


def _would_execute(error: pickle.UnpicklingError) -> bool:
    """Whether torch refuses what it would have to run, and not what it cannot read."""
    return "GLOBAL" in str(error) or "Unsupported class" in str(error)


def _has_checksum(path: str) -> bool:
    """Whether a file's checksum is right. It is opened once more, for the sentence, now that something failed."""
    with CheckpointFile(path) as file:
        return file.verify() is not None


def _unloadable(path: str, error: Exception, is_whole: bool) -> UserError:
    """The sentence for a file that torch or fairseq cannot load: perhaps damaged, or whole and something else."""
    state = "is whole" if is_whole else "may be truncated or damaged"
    # torch's own advice for a pickle that it cannot read is to execute it.
    hidden = isinstance(error, pickle.UnpicklingError) or not str(error)
    reason = type(error).__name__ if hidden else f"{type(error).__name__}: {error}".splitlines()[0]
    return UserError(
        f"`{path}` must be a checkpoint that can be loaded; it {state}, but loading it ends in {reason!r}."
    )
