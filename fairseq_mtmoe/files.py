"""Files that are complete or absent: written beside their place under another name, then moved there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fairseq_mtmoe.errors import UserError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a path to write to; once the block has ended well, that file becomes `path`.

    The folder is made if it is missing. Whatever goes wrong inside, `path` is what it was before.

    Raises:
        UserError: the file cannot be written (a full disk, a folder without write permission).
    """
    target = Path(path)
    # The suffix stays the last one: matplotlib picks its format by it.
    partial = target.with_name(f".{target.stem}.{os.getpid()}{target.suffix}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        _flush(partial)
        os.replace(partial, target)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"`{target}` cannot be written: {reason}; what was there before is as it was.") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def _flush(path: Path) -> None:
    """Wait until the disk has the file: moved earlier, it could be empty after a power cut."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 with Unix line ends, completely or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(text.encode("utf-8"))
