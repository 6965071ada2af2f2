"""Reading and writing checkpoints so that nothing is lost and nothing is executed.

fairseq retries a failed write into the same file, copies `checkpoint_best.pt` over the last good one in place, and
shows a stack trace for a damaged file. `install` puts these functions in the place of fairseq's:

- a file appears under its name only when it is complete and on the disk;
- loading takes tensors, plain containers and `argparse.Namespace`, and never runs code (torch's `weights_only`);
- what fails is said in one sentence.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import torch

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.files import replacing


@contextlib.contextmanager
def complete_or_absent(path: str) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name `path` at the end, and leaves nothing behind when the body fails.

    Raises:
        UserError: the system cannot write it, because the disk is full for example.
    """
    with replacing(path) as partial:
        try:
            with open(partial, "wb") as file:
                yield file
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


def save(obj: Any, path: str, async_write: bool = False) -> None:
    """Write a checkpoint, completely or not at all. Takes the place of fairseq's `torch_persistent_save`."""
    with complete_or_absent(path) as file:
        torch.save(obj, file)


def copy(source: str, target: str, overwrite: bool = False) -> bool:
    """Copy a checkpoint, completely or not at all. Takes the place of fairseq's `PathManager.copy` for local files."""
    if os.path.exists(target) and not overwrite:
        return False
    with open(source, "rb") as original, complete_or_absent(target) as duplicate:
        shutil.copyfileobj(original, duplicate, length=1 << 24)
    return True


def load(path: str) -> Any:
    """The content of a checkpoint file, on the CPU.

    Raises:
        UserError: the file is missing, damaged, or holds anything but tensors, plain containers and `Namespace`.
    """
    with readable(path):
        return torch.load(path, map_location="cpu", weights_only=True)


@contextlib.contextmanager
def readable(path: str) -> Iterator[None]:
    """Turn what torch raises while it reads `path` into a `UserError` of one sentence."""
    try:
        yield
    except pickle.UnpicklingError as error:
        if "GLOBAL" in str(error) or "Unsupported class" in str(error):  # torch's words for what it would have to run
            raise UserError(
                f"`{path}` must hold tensors, plain containers and `argparse.Namespace` alone, but holds other Python "
                "objects, which loading could execute; it was not loaded."
            ) from error
        raise UserError(_damaged(path)) from error
    except FileNotFoundError as error:
        raise UserError(f"`{path}` must be a checkpoint file, but there is none.") from error
    except OSError as error:
        if error.errno != errno.EINVAL:  # torch's word for an archive that ends too early
            raise UserError(f"`{path}` must be a readable checkpoint file, but: {error.strerror}.") from error
        raise UserError(_damaged(path)) from error
    except (RuntimeError, EOFError, IndexError, KeyError, UnicodeDecodeError) as error:
        raise UserError(_damaged(path)) from error


def _damaged(path: str) -> str:
    return f"`{path}` must be a whole checkpoint, but is truncated or damaged; use an older one from the same folder."


def _readable_load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load_checkpoint_to_cpu(path: str, *args: Any, **kwargs: Any) -> Any:
        with readable(path):
            return original(path, *args, **kwargs)

    load_checkpoint_to_cpu.installed_by = __name__  # type: ignore[attr-defined]
    return load_checkpoint_to_cpu


def install() -> None:
    """Put these functions in the place of fairseq's. Safe to call twice."""
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    if hasattr(checkpoint_utils.load_checkpoint_to_cpu, "installed_by"):
        return
    checkpoint_utils.load_checkpoint_to_cpu = _readable_load(checkpoint_utils.load_checkpoint_to_cpu)
    checkpoint_utils.torch_persistent_save = save
    PathManager.copy = staticmethod(copy)
