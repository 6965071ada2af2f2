"""Reading and writing checkpoints so that nothing is lost and nothing is executed.

fairseq retries a failed write into the same file, copies `checkpoint_best.pt` over the last good one in place, loads
flipped bits as weights, and shows a stack trace for a damaged file. With these functions:

- a file appears under its name only when it is complete, has its checksum (`checksum.py`) and on the disk;
- loading and copying read the whole file first, and refuse one that is not what was written;
- loading takes tensors, plain containers and `argparse.Namespace`, and never runs code (`validation.py`);
- what fails is said in one sentence.

A file is opened once, and what is checked are the bytes that are loaded: its name may become another file's at any
time, since whoever saves replaces files.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import pickle
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fairseq_mtmoe.checkpoints import checksum, validation
from fairseq_mtmoe.checkpoints.checksum import write_checksum
from fairseq_mtmoe.checkpoints.last_good import damaged
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file, replacing

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


@contextlib.contextmanager
def complete_or_absent(path: str) -> Iterator[Path]:
    """A file to write, which gets its name `path` at the end, and leaves nothing behind when the body fails.

    Raises:
        UserError: the system cannot write it, because the disk is full for example.
    """
    with replacing(path) as partial:
        try:
            yield partial
        except RuntimeError as error:
            system_error = _system_error(error)
            if system_error is None:
                raise
            raise system_error from error


def _system_error(error: RuntimeError) -> OSError | None:
    """What the system said, where it was the system that failed: torch hides it in an error of its own."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, OSError):
        return OSError(cause.errno, cause.strerror)
    if "PytorchStreamWriter" in str(error) or "unexpected pos" in str(error):
        return OSError(str(error).splitlines()[0])
    return None


def save(obj: Any, path: str) -> str:
    """Write a checkpoint with its checksum, completely or not at all; returns the digest."""
    with complete_or_absent(path) as partial:
        with open(partial, "wb") as file:
            torch.save(obj, file)
        return write_checksum(partial)


def copy(source: str, target: str) -> None:
    """Copy a checkpoint file with its checksum over `target`, completely or not at all, and a damaged one not at all.

    Raises:
        UserError: it is missing or damaged, or the copy cannot be written.
    """
    with CheckpointFile(source) as file:
        copy_open(file, target)


def copy_open(source: CheckpointFile, target: str) -> None:
    """As `copy`, of a file that is open."""
    source.verify()
    with complete_or_absent(target) as partial, open(partial, "wb") as duplicate:
        source.write_to(duplicate)


def load(path: str, mapped: bool = False, remedy: str | None = None) -> dict[str, Any]:
    """The content of a checkpoint file, on the CPU.

    Args:
        path: of the file.
        mapped: tensors are read when they are touched, and not held.
        remedy: what to do where it is damaged, for a sentence; by default to use another checkpoint of the run.

    Raises:
        UserError: the file is missing, damaged, or holds what no checkpoint should: see `validation.py`.
    """
    with CheckpointFile(path, remedy) as file:
        return file.load(mapped)


def average_as_model(path: str, state: dict[str, Any]) -> dict[str, Any]:
    """The state of the checkpoint at `path` with its weights' moving average (`--store-ema`) as the model.

    Raises:
        UserError: the checkpoint holds no moving average.
    """
    average = (state.get("extra_state") or {}).get("ema")
    if not average:
        raise UserError(f"`{path}` must hold a moving average of the weights (`--store-ema`), but holds none.")
    state["model"] = OrderedDict(
        # Copies, as in fairseq: some parameters can be one tensor.
        (name, weight.float() if weight.dtype is torch.half else weight.clone())
        for name, weight in average.items()
    )
    return state


def save_anywhere(state: dict[str, Any], path: str, in_background: bool = False) -> None:
    """`save` on this machine's disks; elsewhere fairseq's own way to save, `in_background` if it can."""
    from fairseq.checkpoint_utils import torch_persistent_save
    from fairseq.file_io import PathManager

    if PathManager.path_requires_pathmanager(path):
        torch_persistent_save(state, path, async_write=in_background)
    else:
        save(state, path)


def expect_writable(save_dir: str) -> None:
    """Make the folder that checkpoints go to, if there is none.

    Raises:
        UserError: no file can be written there.
    """
    from fairseq.checkpoint_utils import verify_checkpoint_directory

    try:
        verify_checkpoint_directory(save_dir)
    except OSError as error:
        raise UserError(
            f"`--save-dir` must be a folder in which files can be written, but is {save_dir!r}: {error.strerror}."
        ) from error
