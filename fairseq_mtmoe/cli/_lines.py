"""Input of `mtmoe translate`, in groups of lines, and its output: standard output or files.

A killed translation into files can be continued: partial files and a journal lie beside the output.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import (
    check_writable,
    decoded_line,
    move_into_place,
    open_in_place,
    output_file,
    regular_file,
)
from fairseq_mtmoe.io.journal import Journal, entries
from fairseq_mtmoe.io.typed import Text

GROUP = 10_000  # lines translated together: enough for full batches of similar lengths
LONGEST = 1 << 20  # bytes in a line
_NOTE = {
    "settings": dict[Text, Any], "groups": int, "bytes": dict[Text, int], "batch": int,
    "found": list[list[list[Any]]],
}  # fmt: skip

Found = Sequence[Sequence[Sequence[Any]]]  # hypotheses of each row of a batch: text, score, length


@dataclass(frozen=True)
class Lines:
    """Consecutive lines of an input; `first` is the first line's number, `name` the input's name in messages."""

    name: str
    first: int
    lines: list[str]


def read(path: Path | None) -> Iterator[Lines]:
    """Yield the lines of a file or of standard input in groups; the last line may lack its line feed.

    Raises:
        UserError: the file cannot be read, or a line is not UTF-8 or is longer than 1 MiB.
    """
    name = "the standard input" if path is None else f"`{path}`"
    size = 1 if path is None and sys.stdin.isatty() else GROUP  # answer each typed line at once
    first = 1
    with nullcontext(sys.stdin.buffer) if path is None else open(regular_file(path), "rb") as file:
        while lines := [_decoded(line, name, first + at) for at, line in enumerate(_some(file, size))]:
            yield Lines(name, first, lines)
            first += len(lines)


def _some(file: BinaryIO, count: int) -> Iterator[bytes]:
    for _ in range(count):
        line = file.readline(LONGEST + 1)
        if not line:
            return
        yield line


def _decoded(line: bytes, name: str, number: int) -> str:
    if len(line) > LONGEST:
        raise UserError(f"Line {number} of {name} must have at most {LONGEST >> 20} MiB, but is longer.")
    text = decoded_line(line, number, name).removesuffix("\n").removesuffix("\r")
    return text.removeprefix("\ufeff") if number == 1 else text


def survey(path: Path) -> tuple[int, str]:
    """Return a file's number of lines and their digest (UserError: see `read`)."""
    count, digest = 0, hashlib.sha256()
    for group in read(path):
        digest.update("".join(f"{line}\n" for line in group.lines).encode())
        count += len(group.lines)
    return count, digest.hexdigest()


class Sink(Protocol):
    """Output of translations.

    groups: number of groups of lines already written. known: results of the next group by batch number.
    """

    groups: int
    known: dict[int, Found]

    def note(self, batch: int, found: Found) -> None: ...
    def write(self, texts: Mapping[str, str]) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


class Screen:
    """Standard output, for one language."""

    def __init__(self, stream: BinaryIO) -> None:
        self.groups, self.known, self._stream = 0, dict[int, Found](), stream

    def note(self, batch: int, found: Found) -> None:
        """Do nothing: standard output cannot be continued."""

    def write(self, texts: Mapping[str, str]) -> None:
        """Write and flush a group's lines (UserError: the output cannot be written)."""
        try:
            for text in texts.values():
                self._stream.write(text.encode())
            self._stream.flush()
        except BrokenPipeError:  # the reader has closed the pipe, as `head` does
            raise
        except OSError as error:
            raise UserError(f"The `standard output` must be writable, but is not: {error.strerror}.") from error

    def finish(self) -> None:
        """Do nothing: all lines are written."""

    def close(self) -> None:
        """Do nothing: standard output stays open."""


class Files:
    """One file per language, moved into place when complete.

    `settings` determine the translations, input included; None if they cannot be continued, as for a pipe.
    """

    def __init__(
        self, paths: Mapping[str, Path], settings: Mapping[str, object] | None, overwrite: bool,
        kept: Sequence[tuple[str, Path]],
    ) -> None:  # fmt: skip
        """Check the paths; `kept` are input files with the names of their options (UserError: `paths` has one)."""
        self.groups, self.known = 0, dict[int, Found]()
        self._paths, self._files = paths, dict[str, BinaryIO]()
        self._partial = {lang: path.with_name(f".{path.name}.unfinished") for lang, path in paths.items()}
        first = next(iter(paths.values()))
        self._place = first.with_name(f".{first.name}.unfinished.jsonl")
        self._settings: dict[str, Any] = {} if settings is None else json.loads(json.dumps(settings))
        self._has_found = False
        self._overwrite, self._kept = overwrite, kept
        self._left = self._check()

    def _check(self) -> list[dict[str, Any]]:
        """Check the paths, and return the journal of a killed translation (UserError)."""
        left = self._unfinished(self._overwrite)
        for path in self._paths.values():
            for name, file in self._kept:
                output_file("--out", path, self._overwrite or bool(left), **{name: file})
            output_file("--out", path, self._overwrite or bool(left))
            check_writable(path.parent)
        return left

    def _unfinished(self, overwrite: bool) -> list[dict[str, Any]]:
        """Return the journal of a killed translation with the same settings (UserError: they differ)."""
        first, *others = entries(self._place, _NOTE) or [{}]
        if not first.get("settings") or not self._settings:
            return []
        before, now = first["settings"], self._settings
        differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if differing and not overwrite:
            what = ", ".join(differing)
            raise UserError(
                f"`{self._place}` belongs to an unfinished translation with another {what}; give another `--out`, or "
                "`--overwrite` to start again."
            )
        return [] if differing else [first, *others]

    def begin(self) -> None:
        """Continue an unfinished translation or start one.

        Raises:
            UserError: another command writes there, or has finished there since the first check.
        """
        out = next(iter(self._paths.values()))
        self._journal = Journal(
            self._place,
            in_use=f"`--out` must be a file that no other command writes, but another `mtmoe translate` is writing "
            f"`{out}`: wait for its end, or give another `--out`.",
        )
        try:
            self._left = self._check()
        except UserError:
            self._journal.close()
            raise
        sizes = dict.fromkeys(self._paths, 0)
        if self._left and self._fits(self._left[0]["bytes"]):
            first, *others = self._left
            self.groups, sizes = first["groups"], first["bytes"]
            self.known = {one["batch"]: one["found"] for one in others if one.get("groups") == self.groups}
            self._has_found = self.groups > 0 or bool(self.known)
        else:
            self._note_groups(sizes)
        for lang, size in sizes.items():
            if not self._is_moved(lang, size):
                self._files[lang] = open_in_place(self._partial[lang], "r+b")
                self._files[lang].truncate(size)
                self._files[lang].seek(size)

    def _fits(self, sizes: Mapping[str, int]) -> bool:
        partial = self._partial
        return sizes.keys() == self._paths.keys() and all(
            self._is_moved(lang, size) or (partial[lang].is_file() and partial[lang].stat().st_size >= size)
            for lang, size in sizes.items()
        )

    def _is_moved(self, lang: str, size: int) -> bool:
        """Return whether a file was moved into place before the process was killed."""
        path = self._paths[lang]
        return size > 0 and not self._partial[lang].exists() and path.exists() and path.stat().st_size == size

    def note(self, batch: int, found: Found) -> None:
        """Record a finished batch's hypotheses in the journal."""
        self._has_found = True
        self._journal.add({"groups": self.groups, "batch": batch, "found": found})

    def write(self, texts: Mapping[str, str]) -> None:
        """Write a group's lines in each language."""
        self._has_found = True
        for lang, text in texts.items():
            file = self._files[lang]
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        self.groups, self.known = self.groups + 1, {}
        self._note_groups({lang: file.tell() for lang, file in self._files.items()})

    def _note_groups(self, sizes: Mapping[str, int]) -> None:
        self._journal.replace({"settings": self._settings, "groups": self.groups, "bytes": sizes})

    def finish(self) -> None:
        """Move the complete files into place."""
        for lang, file in self._files.items():
            file.close()
            move_into_place(self._partial[lang], self._paths[lang])
        self._journal.remove()

    def close(self) -> None:
        """Close the files; keep partial results only if there are some and they can be continued."""
        for file in self._files.values():
            file.close()
        if not self._settings or not self._has_found:
            for path in self._partial.values():
                path.unlink(missing_ok=True)
            self._journal.remove()
        self._journal.close()


def output_paths(out: Path, targets: Sequence[str], inputs: Sequence[Path]) -> dict[str, Path]:
    """Return each language's file for `--out` (UserError: several languages would share one)."""
    name = inputs[0].name if inputs else ""
    if "{lang}" in str(out):
        return {lang: Path(str(out).replace("{lang}", lang)) for lang in targets}
    if out.is_dir() or len(targets) > 1:
        if out.exists() and not out.is_dir():
            raise_invalid("--out", "a folder, or a name with {lang}, for several languages", str(out))
        return {lang: out / (f"{name}.{lang}" if name else lang) for lang in targets}
    return {targets[0]: out}
