"""Files that are complete or absent, and files that are read only if they are files, and hold what they must."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import stat
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fairseq_mtmoe.errors import UserError, raise_invalid

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_CHUNK = 1 << 18  # bytes: what a processor keeps near it
_LONGEST_LINE = 64 << 20


def regular_file(path: str | Path, what: str = "a file") -> Path:
    """`path`, which exists and can be read to an end: opening a pipe would wait for a writer, a device may never end.

    `what` says what the file must be, for the sentence, here and in all that reads files.

    Raises:
        UserError: there is none, or it is a folder, pipe, socket or device, or a link that leads nowhere.
    """
    path = Path(path)
    try:
        kind = stat.S_IFMT(os.stat(path).st_mode)
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        if error.errno == errno.ELOOP:
            reason = "is a link that leads in a circle"
        elif isinstance(error, FileNotFoundError):
            reason = "is a link that leads nowhere" if path.is_symlink() else "there is none"
        raise UserError(f"`{path}` must be {what}, but {reason}.") from error
    except ValueError as error:  # a NUL in the name
        raise UserError(f"`{path!s}` must be {what}, but is no file name: {error}.") from error
    if kind != stat.S_IFREG:
        raise UserError(f"`{path}` must be {what}, but is {_KINDS.get(kind, 'of another kind')} instead.")
    return path


def output_file(name: str, path: Path, overwrite: bool, **inputs: Path) -> Path:
    """`path`, which a command may write: nothing is there, or a file that it was told to overwrite.

    Args:
        name: of the option or argument, for the sentence.
        path: the file to write.
        overwrite: whether `--overwrite` was given.
        inputs: what the command reads, by the name of its argument, which it never overwrites (UserError).
    """
    for source_name, source in inputs.items():
        is_same = os.path.exists(path) and os.path.exists(source) and path.samefile(source)
        if is_same or os.path.realpath(path) == os.path.realpath(source):
            raise_invalid(name, f"another file than {source_name}", str(path))
    if os.path.lexists(path):
        if not overwrite:
            raise_invalid(name, "a file that does not exist yet, or be given with `--overwrite`", str(path))
        regular_file(path, "a file to overwrite")
    return path


def read_bytes(path: str | Path, what: str = "a file") -> bytes:
    """The content of a file (UserError: it is no file (see `regular_file`), or cannot be read)."""
    with _naming_what_fails(path, what):
        return regular_file(path, what).read_bytes()


@contextmanager
def _naming_what_fails(path: str | Path, what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"`{path}` must be {what}, but cannot be read: {error.strerror or error}.") from error


def read_text(path: str | Path, what: str = "a text file") -> str:
    """The content of a file in UTF-8, with its line ends as they are.

    Raises:
        UserError: it cannot be read (see `read_bytes`), or is in another encoding.
    """
    return _decoded(read_bytes(path, what), 0, path)


def _decoded(data: bytes, place: int, path: str | Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"is not at byte {place + error.start}; convert it"
        raise UserError(f"`{path}` must be UTF-8 text, but {reason}.") from error


def text_lines(path: str | Path, what: str = "a text file") -> list[str]:
    """The lines of a UTF-8 file, as `text_batches` has them (UserError: it cannot be read (see `text_batches`))."""
    return [line for lines in text_batches(path, what) for line in lines]


def text_batches(
    path: str | Path, what: str = "a text file", span: tuple[int, int | None] = (0, None)
) -> Iterator[list[str]]:
    """The lines of a UTF-8 file of any size, some thousands at a time. A line feed ends one, and nothing else does.

    So a file has as many lines as `wc -l` counts, whatever is inside them: carriage returns, and what Python and
    Unicode call line breaks (U+2028, U+0085, form feeds …). Only the carriage return of a line that ends in both, as
    Windows writes them, is no part of the line.

    `span`: the bytes to read, from … to before … (None: to the end), whole lines.

    Raises:
        UserError: it cannot be read (see `read_bytes`), is in another encoding, has a line that no memory should
            hold, or its lines end in carriage returns alone.
    """
    place, pending, any_feed = span[0], b"", span[0] > 0
    for data in _chunks(path, what, span):
        whole, feed, rest = data.rpartition(b"\n")
        if feed:
            yield _decoded_lines(pending + whole, place, path)
            place += len(pending) + len(whole) + 1
        any_feed = any_feed or bool(feed)
        pending = rest if feed else pending + rest
        if len(pending) > _LONGEST_LINE:
            _check_line_ends(path, pending, any_feed)
            raise UserError(f"`{path}` must have lines, but has one of over {_LONGEST_LINE >> 20} MiB.")
    if pending:
        lines = _decoded_lines(pending, place, path)
        _check_line_ends(path, pending, any_feed)
        yield lines


def _chunks(path: str | Path, what: str, span: tuple[int, int | None]) -> Iterator[bytes]:
    begin, end = span
    with _naming_what_fails(path, what), open(regular_file(path, what), "rb") as file:
        file.seek(begin)
        while data := file.read(_CHUNK if end is None else min(_CHUNK, end - begin)):
            begin += len(data)
            yield data


def _decoded_lines(data: bytes, place: int, path: str | Path) -> list[str]:
    """The lines of whole ones, which begin at a place of the file; the last one's end is not among them."""
    text = _decoded(data, place, path)
    return (text.replace("\r\n", "\n").removesuffix("\r") if "\r" in text else text).split("\n")


def _check_line_ends(path: str | Path, line: bytes, any_feed: bool) -> None:
    if b"\r" in line[:-1] and not any_feed:  # at its end it may be half of Windows' line end
        raise UserError(f"`{path}` must have lines that end in line feeds, but has carriage returns alone; convert it.")


def read_json(path: str | Path, what: str = "a JSON file") -> Any:
    """The value in a JSON file (UserError: it cannot be read (see `read_text`), or holds something else)."""
    text = read_text(path, what)
    try:
        return json.loads(text)
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise UserError(f"`{path}` must be a JSON file, but cannot be read as one: {reason}.")


def check_writable(folder: str | Path) -> None:
    """See that files can be written to `folder` (UserError), made for that and removed again if there was none."""
    folder = Path(folder)
    missing = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\n")
            file.flush()
    except OSError as error:
        raise UserError(f"`{folder}` must be a folder that can be written to, but is not: {error.strerror}.") from error
    finally:
        for place in missing:
            with suppress(OSError):
                place.rmdir()


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Give a path to write to; once the block has ended well, that file becomes `path`.

    The folder is made if it is missing. Whatever goes wrong inside, `path` is what it was before (UserError: it cannot
    be written). What a killed process of this host left of an earlier try is removed first.
    """
    target = Path(path)
    partial = _partial_of(target)
    try:
        _prepare_for(target)
        yield partial
        move_into_place(partial, target)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"`{target}` cannot be written: {reason}; what was there before is as it was.") from error
    finally:
        with suppress(OSError):
            partial.unlink()


def move_into_place(partial: Path, target: Path) -> None:
    """Let a complete file become `target`, and wait until the disk has it: a power cut leaves one of the two."""
    _flush(partial)
    os.replace(partial, target)
    # Some network file systems refuse to flush a folder. A whole file is there by then, be it the new or the old one.
    with suppress(OSError):
        _flush(target.parent)


@contextmanager
def new_folder(path: str | Path, replaceable: Collection[str] | None = None) -> Iterator[Path]:
    """As `replacing`, an empty folder to fill with files.

    `replaceable`: where a folder may be there already, the names of the files that it may have, and loses (UserError:
    something else is there).
    """
    target = Path(os.path.realpath(path)) if replaceable is not None else Path(path)
    if os.path.lexists(target):
        _check_replaceable(target, replaceable)
    partial = _partial_of(target)
    try:
        _prepare_for(target)
        partial.mkdir()
        yield partial
        for file in partial.iterdir():
            _flush(file)
        _flush(partial)
        _put_in_place(partial, target)
    except OSError as error:
        raise UserError(f"`{target}` cannot be written: {error.strerror or error}; nothing is left of it.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    with suppress(OSError):
        _flush(target.parent)


def _check_replaceable(folder: Path, names: Collection[str] | None) -> None:
    if names is None or not folder.is_dir():
        raise_invalid("the output folder", "one that does not exist yet", str(folder))
    others = [file.name for file in folder.iterdir() if file.is_dir() or file.name not in names]
    if others:
        rule = (
            f"one that has nothing else to lose, such as {others[0]}" if names else "empty, or given with --overwrite"
        )
        raise_invalid("the output folder", rule, str(folder))


def _put_in_place(partial: Path, target: Path) -> None:
    """Let a folder become `target`; one that is there is moved aside first, and removed afterwards."""
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


def _partial_of(target: Path) -> Path:
    """Where this process writes what becomes `target`.

    The host is named because several can write into one network folder, and each knows only its own processes. The
    suffix stays the last one: some libraries pick a format by it.
    """
    host = re.sub(r"[^\w-]", "-", socket.gethostname())
    return target.with_name(f".{target.stem}.{host}.{os.getpid()}{target.suffix}")


def _prepare_for(target: Path) -> None:
    """Make the folder of `target`, and remove the partial files of it whose process is gone from this host."""
    made = [place for place in (target.parent, *target.parent.parents) if not place.exists()]
    target.parent.mkdir(parents=True, exist_ok=True)
    for place in made:
        with suppress(OSError):
            _flush(place.parent)  # a power cut would take the files with the folder's name
    before = _partial_of(target).name.removesuffix(f"{os.getpid()}{target.suffix}")
    pattern = re.compile(f"{re.escape(before)}([0-9]+){re.escape(target.suffix)}")
    with suppress(OSError):
        for name in os.listdir(target.parent):
            found, left = pattern.fullmatch(name), target.with_name(name)
            if found and not _is_running(int(found[1])):
                if left.is_dir() and not left.is_symlink():
                    shutil.rmtree(left, ignore_errors=True)
                else:
                    left.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Whether this host has a process of that number."""
    try:
        os.kill(process, 0)  # the signal 0 is not sent
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return True


def _flush(path: Path) -> None:
    """Wait until the disk has the file, or a folder's names: without it a power cut can lose them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 with Unix line ends, completely or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(text.encode("utf-8"))
