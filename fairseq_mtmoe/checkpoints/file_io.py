"""Reading and writing checkpoints so that nothing is lost and nothing is executed.

fairseq retries a failed write into the same file, copies `checkpoint_best.pt` over the last good one in place, loads
flipped bits as weights, and shows a stack trace for a damaged file. With these functions:

- a file appears under its name only when it is complete, has its checksum (`checksum.py`) and on the disk;
- loading and copying read the whole file first, and refuse one that is not what was written;
- loading takes tensors, plain containers and `argparse.Namespace`, and never runs code (`validation.py`);
- what fails is said in one sentence.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fairseq_mtmoe.checkpoints.checksum import write_checksum
from fairseq_mtmoe.checkpoints.reader import CheckpointFile
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import replacing


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
