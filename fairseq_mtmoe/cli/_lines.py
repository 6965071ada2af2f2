"""Input and output of `mtmoe translate` and `mtmoe score`, in groups of lines.

Output goes to standard output or to files. A killed translation into files goes on after the last
whole group of lines that it has written.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from rich.console import Console
from rich.progress import Progress, TaskID

from fairseq_mtmoe.cli._shared import progress_bar
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
    name = "the standard input" if path is None else f"`{path}`"
    size = 1 if path is None and sys.stdin.isatty() else GROUP  # answer each typed line at once
    first = 1
    with nullcontext(sys.stdin.buffer) if path is None else open(regular_file(path), "rb") as file:
        while lines := _some(file, size, name, first):
            yield Lines(lines, name, first)
            first += len(lines)


def _some(file: BinaryIO, count: int, name: str, first: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < count and (line := file.readline(LONGEST + 1)):
        number = first + len(lines)
        if len(line) > LONGEST:
            raise UserError(
                f"Line {number} of {name} must have at most {LONGEST >> 20} MiB, but is longer."
            )
        text = decoded_line(line, number, name).removesuffix("\n").removesuffix("\r")
        lines.append(text.removeprefix("\ufeff") if number == 1 else text)
    return lines


def survey(path: Path) -> tuple[int, str]:
    """Return a file's number of lines and their digest (UserError: see `read`)."""
    count = 0
    digest = hashlib.sha256()
    for group in read(path):
        digest.update("".join(f"{line}\n" for line in group.lines).encode())
        count += len(group.lines)
    return count, digest.hexdigest()


def expect_output(out: Path | None) -> None:
    """Raise `UserError` if there is neither `--out` nor an open standard output."""
    if out is None and sys.stdout is None:
        raise UserError("`--out` must be given if the standard output is closed, but is not.")


class Screen:
    """Standard output, for one language."""

    lines = 0  # that are written already

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.is_terminal = stream.isatty()

    def begin(self, ends: Sequence[int]) -> None:
        """Do nothing: standard output is open."""

    def write(self, texts: Mapping[str, str]) -> None:
        """Write and flush a group's lines (UserError: the output cannot be written)."""
        try:
            for text in texts.values():
                self._stream.write(text.encode())
            self._stream.flush()
        except BrokenPipeError:  # the reader has closed the pipe, as `head` does
            raise
        except OSError as error:
            raise UserError(
                f"The `standard output` must be writable, but is not: {error.strerror}."
            ) from error

    def finish(self) -> None:
        """Do nothing: all lines are written."""

    def close(self) -> None:
        """Do nothing: standard output stays open."""


class Files:
    """One file per language, moved into place when complete.

    lines: that a killed translation has written into each, in whole groups.
    """

    is_terminal = False

    def __init__(
        self,
        paths: Mapping[str, Path],
        settings: Mapping[str, object] | None,
        overwrite: bool,
        inputs: Sequence[tuple[str, Path]],
    ) -> None:
        """Check the paths.

        Args:
            paths: of the files by language.
            settings: determine the translations, input included; None if they cannot go on, as
                those of a pipe.
            overwrite: whether to replace the files, and what another translation has left.
            inputs: files that may not be overwritten, with the names of their options.
        """
        self.lines = 0
        self._paths = paths
        self._inputs = inputs
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
                "give another `--out`, or `--overwrite` to start again."
            )
        for path in self._paths.values():
            for name, file in self._inputs:
                output_file("--out", path, True, **{name: file})
            output_file("--out", path, self._overwrite or goes_on)
            check_writable(path.parent)
        return goes_on

    def begin(self, ends: Sequence[int]) -> None:
        """Go on with an unfinished translation or start one.

        ends: numbers of lines at the ends of groups.

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
        whole = min(map(_whole_lines, self._files.values())) if goes_on else 0
        self.lines = max((end for end in ends if end <= whole), default=0)
        for file in self._files.values():
            file.seek(0)
            file.truncate(sum(map(len, islice(file, self.lines))))
            file.seek(0, os.SEEK_END)
        if self._settings is not None:
            write_text(self._note, json.dumps(self._settings))

    def write(self, texts: Mapping[str, str]) -> None:
        """Write a group's lines in each language."""
        for lang, text in texts.items():
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
    sink: Screen | Files, ends: Sequence[int], what: str, total: int | None
) -> Iterator[tuple[Progress, TaskID]]:
    """Yield a progress bar over lines that are written to `sink`; then finish `sink`.

    ends: see `Files.begin`.
    """
    sink.begin(ends)
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


def group_ends(counts: Sequence[int]) -> list[int]:
    """Return the ends of groups, as numbers of lines, of files with these lengths."""
    ends = []
    before = 0
    for count in counts:
        ends += [before + min(end, count) for end in range(GROUP, count + GROUP, GROUP)]
        before += count
    return ends


def output_paths(out: Path, targets: Sequence[str], inputs: Sequence[Path]) -> dict[str, Path]:
    """Return each language's file; `out` is a file, a name with {lang}, or a folder."""
    name = inputs[0].name if inputs else ""
    if "{lang}" in str(out):
        return {lang: Path(str(out).replace("{lang}", lang)) for lang in targets}
    if out.is_dir() or len(targets) > 1:
        prefix = f"{name}." if name else ""
        return {lang: out / f"{prefix}{lang}" for lang in targets}
    return {targets[0]: out}
