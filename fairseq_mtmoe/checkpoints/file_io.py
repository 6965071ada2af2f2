"""Read and write checkpoints without losing data or executing a file's code.

A file gets its name only when it is complete, has its checksum (`checksum.py`) and is on the disk.
Loading and copying verify all of it first. It is opened once, so that the verified bytes are the
loaded ones even if a run replaces the file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import pickle
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints import checksum, validation
from fairseq_mtmoe.checkpoints.sharding import State, is_shared_part, shards_of, shared_part_of
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import checkpoint_file, replacing


class CheckpointFile:
    """An open file of `torch.save` (UserError: it is missing or unreadable).

    remedy: advice for a damaged file, which ends a sentence; by default to use another checkpoint.
    """

    def __init__(self, path: str | Path, remedy: str | None = None) -> None:
        self.path = str(path)
        self._remedy = remedy
        with readable(self.path):
            # `__exit__` closes the file.
            self._file = open(checkpoint_file(path), "rb")  # noqa: SIM115

    def __enter__(self) -> CheckpointFile:
        """Return the open file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file; mapped tensors stay valid."""
        self._file.close()

    @functools.cached_property
    def digest(self) -> str | None:
        """The file's checksum, if any; all of it is verified once (UserError: damaged)."""
        with readable(self.path):
            try:
                return checksum.verify(self._file)
            except checksum.Damaged as error:
                fact = "is truncated or damaged"
                if not checksum.is_archive(self._file):
                    fact = "is not a checkpoint, or its beginning is damaged"
                remedy = self._remedy or f"use an older one{suggested_fallback(self.path)}"
                raise UserError(f"`{self.path}` {fact}; {remedy}.") from error

    def load(self, mapped: bool = False) -> State:
        """Verify the file and return its content; `mapped` tensors are read when used."""
        _ = self.digest
        with readable(self.path):
            return validation.read(self.path, self._file, mapped)

    def peek(self) -> State | None:
        """Return the unverified content without reading tensors; None if that fails."""
        try:
            return validation.read(self.path, self._file, mapped=True)
        except Exception:
            return None

    def copy_to(self, target: str) -> None:
        """Verify the file and copy it over `target`, completely or not at all (UserError)."""
        _ = self.digest
        with complete_or_absent(target) as partial, open(partial, "wb") as duplicate:
            self._file.seek(0)
            shutil.copyfileobj(self._file, duplicate, 1 << 24)


def peek(path: str | Path) -> State | None:
    """Return `CheckpointFile.peek` of a file; None if there is none."""
    try:
        with CheckpointFile(path) as file:
            return file.peek()
    except UserError:
        return None


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn torch's errors about the file `path` into a `UserError` of one sentence."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # damaged bytes can raise anything in torch
        names = (None, path, str(Path(path)))
        if (
            isinstance(error, OSError)
            and error.filename not in names
            and "/proc/self/fd/" not in str(error.filename)
        ):
            raise  # it is about a file that options name
        if isinstance(error, FileNotFoundError):
            raise UserError(f"`{path}` does not exist.") from error
        refused = isinstance(error, pickle.UnpicklingError)
        if refused and ("GLOBAL" in str(error) or "Unsupported class" in str(error)):
            raise UserError(
                f"`{path}` contains Python objects other than tensors, plain containers and "
                "`argparse.Namespace`; loading them could run code, so it was not loaded."
            ) from error
        # torch raises EINVAL for an archive that ends too early.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise UserError(f"`{path}` cannot be read: {error.strerror or error}.") from error
        # torch would advise to execute a pickle that it cannot read.
        reason = "" if refused else f"{error}".partition("\n")[0]
        message = f"{type(error).__name__}: {reason}".removesuffix(": ")
        raise UserError(f"`{path}` cannot be loaded as a checkpoint: {message}.") from error


@contextlib.contextmanager
def complete_or_absent(path: str) -> Iterator[Path]:
    """Yield a file to write, which gets the name `path` at the end (UserError)."""
    with replacing(path) as partial:
        try:
            yield partial
        except RuntimeError as error:
            # torch hides the system's error in one of its own.
            cause = error.__cause__ or error.__context__
            if isinstance(cause, KeyboardInterrupt | SystemExit):  # in the middle of a file
                raise cause from None
            if isinstance(cause, OSError):
                raise OSError(cause.errno, cause.strerror) from error
            if "PytorchStreamWriter" in str(error) or "unexpected pos" in str(error):
                raise OSError(str(error).splitlines()[0]) from error
            raise


def save(obj: Any, path: str) -> str:
    """Write a checkpoint with its checksum, whole or not at all; return the digest."""
    with complete_or_absent(path) as partial:
        with open(partial, "wb") as file:
            torch.save(obj, file)
        return checksum.write_checksum(partial)


def load(path: str, mapped: bool = False, remedy: str | None = None) -> State:
    """Return a checkpoint file's content on the CPU; see `CheckpointFile`."""
    with CheckpointFile(path, remedy) as file:
        return file.load(mapped)


def save_anywhere(state: State, path: str, in_background: bool = False) -> None:
    """Save by `save` on local disks, else as fairseq, `in_background` if possible."""
    from fairseq.checkpoint_utils import torch_persistent_save
    from fairseq.file_io import PathManager

    if PathManager.path_requires_pathmanager(path):
        torch_persistent_save(state, path, async_write=in_background)
    else:
        save(state, path)


def expect_writable(save_dir: str) -> None:
    """Make the checkpoints' folder if needed (UserError: it is not writable)."""
    from fairseq.checkpoint_utils import verify_checkpoint_directory

    try:
        verify_checkpoint_directory(save_dir)
    except OSError as error:
        raise UserError(f"`--save-dir` {save_dir} cannot be written: {error.strerror}.") from error


def suggested_fallback(path: str | Path) -> str:
    """Return the end of a sentence that suggests another checkpoint beside `path`."""
    shared_part = shared_part_of(Path(path))
    other = newest_good_in(shared_part.parent, without=shared_part.name)
    if other:
        return f": the newest good one beside it is `{other}`"
    return " or copy it again, since there is no good one beside it"


def newest_good_in(folder: str | Path, without: str = "") -> Path | None:
    """Return a folder's newest intact checkpoint with finite weights, or None."""
    files = [file for file in Path(folder).glob("checkpoint*.pt") if file.name != without]
    return next(filter(_is_good, sorted(files, key=_age)), None)


def _age(file: Path) -> float:
    """Return a sort key, the newest first; the run may delete a file meanwhile."""
    try:
        return -file.stat().st_mtime
    except OSError:
        return 0.0


def _is_good(path: Path, digest: str | None = None) -> bool:
    """Return whether a file and its shards are intact, of one save, and finite.

    digest: that the shared part names for this shard.
    """
    try:
        with CheckpointFile(path, remedy="use another") as file:
            content = file.load(mapped=True)
            # Older files have no checksum.
            if digest not in (None, file.digest) or checksum.is_legacy(file._file):
                return False
        weights = (value for value in content.get("model", {}).values() if torch.is_tensor(value))
        shards = shards_of(path, content) if digest is None and is_shared_part(content) else {}
        return are_finite(weights) and all(
            _is_good(shard, entry["sha256"]) for shard, entry in shards.items()
        )
    except Exception:  # no run can resume from it, whatever the error
        return False


def are_finite(weights: Iterable[Tensor]) -> bool:
    """Return whether all weights are finite; a GPU synchronises once."""
    floats = [
        weight.detach() for weight in weights if weight.is_floating_point() and weight.numel()
    ]
    norms = torch._foreach_norm(floats, math.inf) if floats else [torch.zeros(())]
    return bool(torch.stack([norm.float() for norm in norms]).isfinite().all())
