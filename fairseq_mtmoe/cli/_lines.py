"""What `mtmoe translate` reads, in groups of lines, and where its translations go: the screen, or files that are whole.

A translation into files goes on where it was killed: what is finished of them lies beside them, with a journal.
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
from fairseq_mtmoe.io.files import check_writable, move_into_place, output_file, regular_file
from fairseq_mtmoe.io.journal import Journal, entries
from fairseq_mtmoe.io.typed import Text

GROUP = 10_000  # lines that are translated together: enough for full batches of like lengths
LONGEST = 1 << 20  # bytes of a line
_NOTE = {
    "settings": dict[Text, Any], "groups": int, "bytes": dict[Text, int], "batch": int,
    "found": list[list[list[Any]]],
}  # fmt: skip

Found = Sequence[Sequence[Sequence[Any]]]  # of each row of a batch its hypotheses: text, score, length


@dataclass(frozen=True)
class Lines:
    """Some lines of an input; `first` is the number of the first, `name` is for sentences."""

    name: str
    first: int
    lines: list[str]


def read(path: Path | None) -> Iterator[Lines]:
    """The lines of a file, or of the standard input, in groups: as many as have a line feed, and a last one without.

    Raises:
        UserError: it cannot be read, or a line is no UTF-8 or of over 1 MiB.
    """
    name = "the standard input" if path is None else f"`{path}`"
    size = 1 if path is None and sys.stdin.isatty() else GROUP  # who types waits for an answer
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
        raise UserError(f"Line {number} of {name} must be of at most {LONGEST >> 20} MiB, but is longer.")
    try:
        text = line.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        where = f"Line {number} of {name}"
        raise UserError(f"{where} must be UTF-8 text, but is not at byte {error.start}; convert it.") from error
    return text.removeprefix("\ufeff") if number == 1 else text


def survey(path: Path) -> tuple[int, str]:
    """Return how many lines a file has, with a digest of all (UserError: see `read`)."""
    count, digest = 0, hashlib.sha256()
    for group in read(path):
        digest.update("".join(f"{line}\n" for line in group.lines).encode())
        count += len(group.lines)
    return count, digest.hexdigest()


class Sink(Protocol):
    """Where translations go.

    groups: so many groups of lines are written already. known: what is found of the next, by its batches' numbers.
    """

    groups: int
    known: dict[int, Found]

    def note(self, batch: int, found: Found) -> None: ...
    def write(self, texts: Mapping[str, str]) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


class Screen:
    """The standard output, for one language."""

    def __init__(self, stream: BinaryIO) -> None:
        self.groups, self.known, self._stream = 0, dict[int, Found](), stream

    def note(self, batch: int, found: Found) -> None:
        """Nothing: it cannot go on."""

    def write(self, texts: Mapping[str, str]) -> None:
        try:
            for text in texts.values():
                self._stream.write(text.encode())
            self._stream.flush()
        except BrokenPipeError:  # who reads has enough
            raise
        except OSError as error:
            raise UserError(
                f"The `standard output` must take the translations, but cannot: {error.strerror}."
            ) from error

    def finish(self) -> None:
        """Nothing is left."""

    def close(self) -> None:
        """It stays open."""


class Files:
    """A file for each language, which is there when it is whole.

    `settings` are all that decides about translations, the input too; None where they cannot go on, as of a pipe.
    """

    def __init__(
        self, paths: Mapping[str, Path], settings: Mapping[str, object] | None, overwrite: bool,
        kept: Sequence[tuple[str, Path]],
    ) -> None:  # fmt: skip
        """`kept` are files that must stay as they are, with the names of their options (UserError: `paths` has one)."""
        self.groups, self.known = 0, dict[int, Found]()
        self._paths, self._files = paths, dict[str, BinaryIO]()
        self._partial = {lang: path.with_name(f".{path.name}.unfinished") for lang, path in paths.items()}
        first = next(iter(paths.values()))
        self._place = first.with_name(f".{first.name}.unfinished.jsonl")
        self._settings: dict[str, Any] = {} if settings is None else json.loads(json.dumps(settings))
        self._left = self._unfinished(overwrite)
        self._has_found = False
        for path in paths.values():
            for name, file in kept:
                output_file("--out", path, overwrite or bool(self._left), **{name: file})
            output_file("--out", path, overwrite or bool(self._left))
            check_writable(path.parent)

    def _unfinished(self, overwrite: bool) -> list[dict[str, Any]]:
        """What a killed translation of the same left (UserError: it was another one)."""
        first, *others = entries(self._place, _NOTE) or [{}]
        if not first.get("settings") or not self._settings:
            return []
        before, now = first["settings"], self._settings
        differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if differing and not overwrite:
            what = ", ".join(differing)
            raise UserError(
                f"`{self._place}` is of an unfinished translation with another {what}; give another `--out`, or "
                "`--overwrite` to begin anew."
            )
        return [] if differing else [first, *others]

    def begin(self) -> None:
        """Take up what is left, or begin (UserError: another process writes there)."""
        out = next(iter(self._paths.values()))
        self._journal = Journal(
            self._place,
            in_use=f"`--out` must be a file that no other command writes, but another `mtmoe translate` is writing "
            f"`{out}` now: wait for its end, or give another `--out`.",
        )
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
                self._files[lang] = open(self._partial[lang], "r+b" if size else "w+b")  # noqa: SIM115 (`close`)
                self._files[lang].truncate(size)
                self._files[lang].seek(size)

    def _fits(self, sizes: Mapping[str, int]) -> bool:
        partial = self._partial
        return sizes.keys() == self._paths.keys() and all(
            self._is_moved(lang, size) or (partial[lang].is_file() and partial[lang].stat().st_size >= size)
            for lang, size in sizes.items()
        )

    def _is_moved(self, lang: str, size: int) -> bool:
        """Whether a file was finished before the process was killed."""
        path = self._paths[lang]
        return size > 0 and not self._partial[lang].exists() and path.exists() and path.stat().st_size == size

    def note(self, batch: int, found: Found) -> None:
        """Note the hypotheses of a finished batch."""
        self._has_found = True
        self._journal.add({"groups": self.groups, "batch": batch, "found": found})

    def write(self, texts: Mapping[str, str]) -> None:
        """Write the lines of a group in each language."""
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
        """Let the files be there, whole."""
        for lang, file in self._files.items():
            file.close()
            move_into_place(self._partial[lang], self._paths[lang])
        self._journal.remove()

    def close(self) -> None:
        """Keep what is found for going on; leave nothing where nothing is, or it cannot go on."""
        for file in self._files.values():
            file.close()
        if not self._settings or not self._has_found:
            for path in self._partial.values():
                path.unlink(missing_ok=True)
            self._journal.remove()
        self._journal.close()


def output_paths(out: Path, targets: Sequence[str], inputs: Sequence[Path]) -> dict[str, Path]:
    """Return the file of each language, for `--out` (UserError: several languages would have one file)."""
    name = inputs[0].name if inputs else ""
    if "{lang}" in str(out):
        return {lang: Path(str(out).replace("{lang}", lang)) for lang in targets}
    if out.is_dir() or len(targets) > 1:
        if out.exists() and not out.is_dir():
            raise_invalid("--out", "a folder, or a name with {lang}, for several languages", str(out))
        return {lang: out / (f"{name}.{lang}" if name else lang) for lang in targets}
    return {targets[0]: out}
