"""Input and output of `mtmoe translate` and `mtmoe score`, in groups of lines.

Output goes to standard output or to files. A killed translation into files goes on after the last
whole line that it has written.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import Progress, TaskID

from fairseq_mtmoe.cli._shared import as_file, progress_bar
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import (
    check_writable,
    decoded_line,
    move_into_place,
    open_in_place,
    output_file,
    read_json,
    regular_file,
    write_text,
)
from fairseq_mtmoe.core.locked import lock
from fairseq_mtmoe.translation.decode.lines import Lines

GROUP = 10_000  # lines translated together: enough for full batches of similar lengths
LONGEST = 1 << 20  # bytes in a line


def read(path: Path | None) -> Iterator[Lines]:
    """Yield the lines of a file or of standard input in groups.

    The last line may lack its line feed.

    Raises:
        UserError: the file cannot be read, or a line is not UTF-8 or is longer than 1 MiB.
    """
    if path is None:
        size = 1 if sys.stdin.isatty() else GROUP  # answer each typed line at once
        yield from _groups(sys.stdin.buffer, size, "the standard input")
        return
    with open(regular_file(path), "rb") as file:
        yield from _groups(file, GROUP, f"`{path}`")


def _groups(file: BinaryIO, size: int, name: str) -> Iterator[Lines]:
    first = 1
    while lines := _next_lines(file, size, name, first):
        yield Lines(lines, name, first)
        first += len(lines)


def _next_lines(file: BinaryIO, count: int, name: str, first: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < count and (line := file.readline(LONGEST + 1)):
        number = first + len(lines)
        if len(line) > LONGEST:
            raise UserError(f"Line {number} of {name} is longer than {LONGEST >> 20} MiB.")
        text = decoded_line(line, number, name).removesuffix("\n").removesuffix("\r")
        if number == 1:
            text = text.removeprefix("\ufeff")
        lines.append(text)
    return lines


def survey(*paths: Path) -> tuple[int, list[str]]:
    """Return the number of lines of all files, and each one's digest; see `read`."""
    count = 0
    digests = []
    for path in paths:
        digest = hashlib.sha256()
        for group in read(path):
            digest.update(as_file(group.lines).encode())
            count += len(group.lines)
        digests.append(digest.hexdigest())
    return count, digests


def expect_output(out: Path | None) -> None:
    """Raise `UserError` if `--out` is missing and the standard output is closed."""
    if out is None and sys.stdout is None:
        raise UserError("`--out` is required, because the standard output is closed.")


class Screen:
    """Standard output, for one language."""

    lines = 0  # that are written already

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()

    def begin(self) -> None:
        """Do nothing: standard output is open."""

    def write(self, lang: str, text: str) -> None:
        """Write and flush lines (UserError: the output cannot be written)."""
        try:
            self._stream.write(text.encode())
            self._stream.flush()
        except BrokenPipeError:  # the reader has closed the pipe, as `head` does
            raise
        except OSError as error:
            raise UserError(
                f"The `standard output` cannot be written: {error.strerror}."
            ) from error

    def finish(self) -> None:
        """Do nothing: all lines are written."""

    def close(self) -> None:
        """Do nothing: standard output stays open."""


class Files:
    """One file per language, moved into place when complete.

    lines: that a killed translation has written into each.
    """

    is_terminal = False

    def __init__(
        self,
        paths: Mapping[str, Path],
        settings: Mapping[str, object] | None,
        overwrite: bool,
        inputs: Sequence[Path],
    ) -> None:
        """Check the paths.

        Args:
            paths: of the files by language.
            settings: determine the translations, input included; None if they cannot go on, as
                those of a pipe.
            overwrite: whether to replace the files, and what another translation has left.
            inputs: files that may not be overwritten.
        """
        self.lines = 0
        self._paths = paths
        self._inputs = {str(path): path for path in inputs}
        self._overwrite = overwrite
        self._partial = {
            lang: path.with_name(f".{path.name}.unfinished") for lang, path in paths.items()
        }
        self._files: dict[str, BinaryIO] = {}
        first = next(iter(paths.values()))
        self._note = first.with_name(f".{first.name}.unfinished.json")
        self._settings: Any = json.loads(json.dumps(settings))
        self._check()

    def _check(self) -> bool:
        """Return whether a killed translation of these settings can go on.

        Raises:
            UserError: it has others.
        """
        before = None
        if self._note.exists():
            before = read_json(self._note, "the settings of a translation")
        goes_on = before is not None and before == self._settings
        if before is not None and not goes_on and not self._overwrite:
            raise UserError(
                f"`{self._note}` belongs to an unfinished translation with other options or input; "
                "give another `--out`, or `--overwrite` to start over."
            )
        for path in self._paths.values():
            output_file("--out", path, self._overwrite or goes_on, **self._inputs)
            check_writable(path.parent)
        return goes_on

    def begin(self) -> None:
        """Go on with an unfinished translation or start one.

        Raises:
            UserError: another command writes there, or has finished there since the first check.
        """
        goes_on = self._check()
        for lang, partial in self._partial.items():
            partial.parent.mkdir(parents=True, exist_ok=True)
            # It may have been killed while its files were moved into place.
            if goes_on and not partial.exists() and self._paths[lang].exists():
                os.replace(self._paths[lang], partial)
            self._files[lang] = _locked(partial)
        if goes_on:
            self.lines = min(map(_whole_lines, self._files.values()))
        for file in self._files.values():
            file.seek(0)
            file.truncate(sum(map(len, islice(file, self.lines))))
            file.seek(0, os.SEEK_END)
        if self._settings is not None:
            write_text(self._note, json.dumps(self._settings))

    def write(self, lang: str, text: str) -> None:
        """Write lines of a language, and wait until they are on the disk."""
        file = self._files[lang]
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())

    def finish(self) -> None:
        """Move the complete files into place."""
        for lang, file in self._files.items():
            file.close()
            move_into_place(self._partial[lang], self._paths[lang])
        self._note.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; keep partial results only if there are some and they can go on."""
        for file in self._files.values():
            file.close()
        partial = [self._partial[lang] for lang in self._files if self._partial[lang].exists()]
        if self._settings is not None and any(path.stat().st_size for path in partial):
            return
        if self._files:  # the note first: without partial files it would claim the old output
            self._note.unlink(missing_ok=True)
        for path in partial:
            path.unlink()


@contextmanager
def writing(
    sink: Screen | Files, what: str, total: int | None
) -> Iterator[tuple[Progress, TaskID]]:
    """Yield a progress bar over lines that are written to `sink`; then finish `sink`."""
    sink.begin()
    console = Console(stderr=True, quiet=sink.is_terminal)
    with closing(sink), progress_bar("lines", console, transient=True) as progress:
        yield progress, progress.add_task(what, total=total)
        sink.finish()


def _locked(path: Path) -> BinaryIO:
    """Return a file, open to read and write (UserError: another process has it open)."""
    sentence = (
        "`--out` must be a file that no other command writes, but another `mtmoe` is writing "
        f"`{path}`: wait for its end, or give another `--out`."
    )
    file: BinaryIO = open_in_place(path, "r+b")
    try:
        lock(file, sentence)
        # It may have been moved before it was locked.
        if not path.exists() or not os.path.samefile(path, file.fileno()):
            raise UserError(sentence)
    except UserError:
        file.close()
        raise
    return file


def _whole_lines(file: BinaryIO) -> int:
    file.seek(0)
    return sum(line.endswith(b"\n") for line in file)


def output_paths(out: Path, targets: Sequence[str], inputs: Sequence[Path]) -> dict[str, Path]:
    """Return each language's file; `out` is a file, a name with {lang}, or a folder."""
    if "{lang}" in str(out):
        return {lang: Path(str(out).replace("{lang}", lang)) for lang in targets}
    if out.is_dir() or len(targets) > 1:
        prefix = "".join(f"{path.name}." for path in inputs[:1])
        return {lang: out / f"{prefix}{lang}" for lang in targets}
    return {targets[0]: out}
