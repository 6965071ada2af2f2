"""Write files completely or not at all; read only regular and valid files."""

import json
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairseq_mtmoe.core.errors import UserError


def regular_file(path: str | Path, what: str = "a file") -> Path:
    """Return `path` if it is a regular file (UserError: it is missing, a folder, …).

    what: noun phrase for the error, such as `a recipe`.
    """
    path = Path(path)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError as error:
        reason = "is a link to nothing" if path.is_symlink() else "does not exist"
        raise UserError(f"`{path}` {reason}; it must be {what}.") from error
    except (OSError, ValueError) as error:  # a NUL in the name
        raise _unreadable(path, what, error) from error
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise UserError(f"`{path}` must be {what}, but is {kind} instead.")
    return path


def checkpoint_file(path: str | Path) -> Path:
    """Return `path` if it is a regular file (UserError: see `regular_file`).

    A run has no best checkpoint before its first validation.
    """
    path = Path(path)
    if path.name.startswith("checkpoint_best") and not os.path.lexists(path):
        last = path.with_name(path.name.replace("best", "last"))
        so_far = f"; use `{last}` until then" if last.is_file() else ""
        raise UserError(f"`{path}` does not exist: a run's first validation writes it{so_far}.")
    return regular_file(path, "a checkpoint file")


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


def _unreadable(path: str | Path, what: str, error: Exception) -> UserError:
    return UserError(f"`{path}` must be {what}, but cannot be read: {_reason(error)}.")


def output_file(name: str, path: Path, overwrite: bool, /, **inputs: Path) -> Path:
    """Return `path` if the argument `name` may write it (UserError).

    It must not exist, or be a file to `overwrite`, and must differ from all `inputs`.
    """
    for source_name, source in inputs.items():
        if os.path.realpath(path) == os.path.realpath(source):
            raise UserError(f"`{name}` and {source_name} must be different files: {path}.")
    if os.path.lexists(path):
        if not overwrite:
            raise UserError(
                f"`{name}` must be a new file, but {path} exists already; `--overwrite` "
                "replaces it."
            )
        regular_file(path, "a file to overwrite")
    return path


def read_bytes(path: str | Path, what: str = "a file") -> bytes:
    """Return a file's bytes (UserError: see `regular_file`, or it cannot be read)."""
    try:
        return regular_file(path, what).read_bytes()
    except OSError as error:
        raise _unreadable(path, what, error) from error


def read_text(path: str | Path, what: str = "a text file") -> str:
    """Return a UTF-8 file's text, with its line ends unchanged.

    Raises `UserError` as `read_bytes` does, and for another encoding.
    """
    try:
        return read_bytes(path, what).decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"is not at byte {error.start}; convert it"
        raise UserError(f"`{path}` must be UTF-8 text, but {reason}.") from error


def decoded_line(line: bytes, number: int, name: str) -> str:
    """Return a line of a stream as text.

    Raises `UserError`, with its number and the stream's name, if it is not UTF-8.
    """
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"Line {number} of {name}"
        raise UserError(
            f"{where} must be UTF-8 text, but is not at byte {error.start}; convert it."
        ) from error


def text_lines(path: str | Path, what: str = "a text file") -> list[str]:
    """Return the lines of a UTF-8 file.

    There are as many lines as `wc -l` counts: only a line feed ends a line, no other break of
    Python or Unicode. A carriage return before it is not part of the line.

    Raises:
        UserError: it cannot be read, is in another encoding, or has carriage returns alone.
    """
    text = read_text(path, what)
    if "\n" not in text and "\r" in text[:-1]:  # at its end it may be half of Windows' line end
        raise UserError(
            f"`{path}` must end its lines with line feeds, not carriage returns; convert it."
        )
    lines = text.replace("\r\n", "\n").split("\n")
    last = lines.pop().removesuffix("\r")
    return [*lines, last] if last or text.endswith("\r") else lines


def read_json(path: str | Path, what: str = "a JSON file") -> Any:
    """Return a JSON file's value (UserError: see `read_text`, or it is no JSON)."""
    text = read_text(path, what)
    try:
        return json.loads(text)
    except (RecursionError, ValueError) as error:
        raise _unreadable(path, "a JSON file", error) from error


def open_in_place(path: Path, mode: str, **text: Any) -> Any:
    """Open a file to change it where it lies; it is made if missing.

    Raises `UserError` instead of following a link.

    mode, text: arguments of `open`.
    """

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    if path.is_symlink():
        raise UserError(
            f"`{path}` must be a file, but is a link, which could point to another one; remove it."
        )
    if os.path.lexists(path):
        regular_file(path)
    return open(path, mode, opener=opener, **text)


def check_writable(folder: str | Path) -> None:
    """Raise a `UserError` if no file can be written to `folder`; leave it as it was."""
    folder = Path(folder)
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\n")
            file.flush()
    except OSError as error:
        raise UserError(f"`{folder}` cannot be written: {_reason(error)}.") from error
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a path to write, which becomes `path` if the block succeeds (UserError)."""
    target = Path(path)
    with _partial(target, "what was there before is as it was") as partial:
        yield partial
        move_into_place(partial, target)


@contextmanager
def _partial(target: Path, outcome: str) -> Iterator[Path]:
    """Yield a temporary path beside `target`, and remove it and dead processes' paths.

    The name has the host, as a host knows only its own processes, and the suffix, by which
    libraries pick a format. Nobody can put a link there before, because the end of the name is
    random.
    """
    host = re.sub(r"[^\w-]", "-", socket.gethostname())
    before = f".{target.stem}.{host}."
    partial = target.with_name(f"{before}{os.getpid()}.{secrets.token_hex(4)}{target.suffix}")
    try:
        made = [path for path in (target.parent, *target.parent.parents) if not path.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        for path in made:
            with suppress(OSError):
                _flush(path.parent)  # or a power cut would lose the folder's name and its files
        left = f"{re.escape(before)}([0-9]+)(\\.[0-9a-f]{{8}})?{re.escape(target.suffix)}"
        with suppress(OSError):
            _remove_left(target.parent, left)
        yield partial
    except OSError as error:
        raise UserError(f"`{target}` cannot be written: {_reason(error)}; {outcome}.") from error
    finally:
        with suppress(OSError):
            _remove(partial)


def _remove_left(folder: Path, pattern: str) -> None:
    """Remove partial files whose process, named in them, no longer runs on this host."""
    for name in os.listdir(folder):
        match = re.fullmatch(pattern, name)
        if match and not _is_running(int(match[1])):
            _remove(folder / name)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def move_into_place(partial: Path, target: Path) -> None:
    """Rename a complete file to `target`, and wait until it is on the disk."""
    _flush(partial)
    os.replace(partial, target)
    # Some network file systems cannot flush a folder.
    # By then the file is whole, the new or the old one.
    with suppress(OSError):
        _flush(target.parent)


@contextmanager
def new_folder(path: str | Path, replaceable: Collection[str] | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill, which becomes `path` if the block succeeds.

    replaceable: names of files that an existing folder may have and lose; None: it must not exist
    (UserError).
    """
    target = Path(os.path.realpath(path)) if replaceable is not None else Path(path)
    _check_replaceable(target, replaceable)
    with _partial(target, "nothing is left of it") as partial:
        partial.mkdir()
        yield partial
        for file in (*partial.iterdir(), partial):
            _flush(file)
        _check_replaceable(target, replaceable)  # another command may have made it meanwhile
        _put_in_place(partial, target)
    with suppress(OSError):
        _flush(target.parent)


def _check_replaceable(folder: Path, names: Collection[str] | None) -> None:
    if not os.path.lexists(folder):
        return
    if names is None or not folder.is_dir():
        raise UserError(f"`{folder}` exists already; give a folder that does not exist yet.")
    others = [file.name for file in folder.iterdir() if file.is_dir() or file.name not in names]
    if others:
        remedy = "give another output folder" + ("" if names else ", or --overwrite")
        raise UserError(f"`{folder}` contains other files, such as {others[0]}; {remedy}.")


def _put_in_place(partial: Path, target: Path) -> None:
    """Rename a folder to `target`; an existing one is moved aside first, then removed."""
    if not target.exists():
        os.rename(partial, target)
        return
    aside = partial.with_name(f"{partial.name}.old")
    os.rename(target, aside)
    try:
        os.rename(partial, target)
    except OSError:
        os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _is_running(process: int) -> bool:
    """Return whether this host runs a process of that number."""
    try:
        os.kill(process, 0)  # the signal 0 is not sent
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        pass
    return True


def _flush(path: Path) -> None:
    """Wait until the file, or a folder's names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # which does not wait for a pipe
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link(path: Path, other: Path) -> None:
    """Give a file a second name, or copy it where that is impossible."""
    try:
        os.link(path, other)
    except OSError:
        shutil.copyfile(path, other)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 with Unix line ends, completely or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(text.encode("utf-8"))
