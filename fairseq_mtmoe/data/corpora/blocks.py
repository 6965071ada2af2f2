"""What the rooms of `prepare corpora` hand on: sentence pairs in blocks, and what could not be read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fairseq_mtmoe.errors import UserError

Span = tuple[int, int | None]  # bytes of a file, unpacked: from … to before …, None for its end
BLOCK = 50_000  # pairs: what one worker does at a time


@dataclass(frozen=True)
class Block:
    source: Sequence[str]  # as read: not normalised
    target: Sequence[str]
    lines: NDArray[np.int64]  # of each pair: the line, or segment (TMX, SGM, .po), of its file, from 1
    references: tuple[Sequence[str], ...] = ()  # further ones of evaluation data, each as long as `target`


@dataclass(frozen=True)
class BadLine:
    file: str
    line: int
    reason: str  # one of `BAD_REASONS`
    excerpt: str
    lost: int = 1  # number of lines or segments that it stands for; 0 where none is known


class Content(NamedTuple):
    """Where the bytes of a corpus' file lie as they are, and what ended their unpacking too early."""

    path: Path
    reason: str = ""  # one of `BAD_REASONS`; empty if all of the file is there
    message: str = ""


@dataclass(frozen=True)
class CorpusFiles:
    name: str
    paths: tuple[Path, ...]  # 1 or 2; a member of an archive is written  archive.tgz!path/inside
    source_lang: str
    target_lang: str
    format: str = "auto"  # one of `readers.FORMATS`
    fields: Mapping[str, str | int] = field(default_factory=dict)  # columns of TSV, keys of JSON lines; else by content
    is_evaluation: bool = False  # every line is needed, also one without text, so that scores are of the whole set
    allow_unequal: bool = False  # of two files of lines one may have more: they are left out
    first: int = 1  # the number of its first line, of a corpus of lines
    spans: tuple[Span, ...] = ((0, None), (0, None))  # of each file, unpacked
    unpacked: tuple[Content, ...] = ()  # where the files lie unpacked, if one of them is packed

    @property
    def contents(self) -> tuple[Content, ...]:
        return self.unpacked or tuple(map(Content, self.paths))


MAX_LINE = 65_536  # characters: a longer line is no sentence, and no file may fill the memory

# Every reason of a `BadLine`, and what it means in a report.
BAD_REASONS = {
    "encoding": "not in UTF-8",
    "nul": "has a NUL byte",
    "empty": "no text on one side",
    "long": f"longer than {MAX_LINE} characters",
    "line ends": "the file's lines end in carriage returns alone",
    "columns": "another number of columns than the first lines have",
    "keys": "not a JSON object with both texts",
    "untranslated": "a segment without text in one of the two languages, or whose translation is marked as unfinished",
    "unpaired": "one side has segments that the other does not have",
    "unequal": "one of two files has more lines: after one that is missing all pairs are shifted",
    "markup": "not what the format says; the rest of the file cannot be read",
    "charset": "not in the encoding that the file says it has, or in an unknown one; the rest cannot be read",
    "truncated": "the packed file ends too early; what is after that is lost",
    "damaged": "the packed file is damaged; what is after that cannot be read",
}

# What ends a file: nobody knows how much is lost.
OF_FILES = frozenset({"line ends", "markup", "charset", "truncated", "damaged"})
HARMLESS = frozenset({"untranslated"})  # no fault of the file: catalogs and translation memories are rarely complete

OnBadLine = Literal["stop", "drop", "salvage"]  # what ends a run, from the strictest on: see `check`


class Fault(Exception):
    """What makes the rest of a file unreadable: a key of `BAD_REASONS`, a message, and how many lines it costs."""

    def __init__(self, reason: str, message: str, lost: int = 0) -> None:
        super().__init__(message)
        self.reason, self.message, self.lost = reason, message, lost


def check_whole(content: Content, lost: int = 0) -> None:
    """Raise the `Fault` that ended the unpacking of a file too early, if one did."""
    if content.reason:
        raise Fault(content.reason, content.message, lost)


def excerpt_of(text: str | bytes) -> str:
    """The beginning of a line that can be printed, whatever is in it."""
    text = text[:320].decode("utf-8", "backslashreplace") if isinstance(text, bytes) else text
    shown = "".join(character if character.isprintable() else "\ufffd" for character in text[:80])
    return shown if len(text) <= 80 else f"{shown}…"


def text_fault(text: str) -> str | None:
    """Why a text from a structured file (a string of JSON, of XML …) is none for a corpus: a key of `BAD_REASONS`."""
    if not text.strip():
        return "empty"
    if len(text) > MAX_LINE:
        return "long"
    if "\0" in text:
        return "nul"
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character, which JSON can spell
        return "encoding"
    return None


def said_of_unequal(bad_samples: Iterable[Sequence[Any]]) -> Iterator[str]:
    """What was made of files of unequal length, in sentences; of each sample: file, line, reason and excerpt."""
    for name, line, reason, excerpt in bad_samples:
        if reason == "unequal":
            yield f"{name} has {excerpt}, its translation {line - 1}; only the first {line - 1} of both are used."


def check(bad: BadLine, on_bad_line: OnBadLine, files: CorpusFiles) -> None:
    """Raise a `UserError` where a bad line ends the run, which none of `HARMLESS` does; other lines are left out.

    In validation and test sets all others do. In training files of unequal length do without `files.allow_unequal`,
    what ends a file without `salvage`, and any other bad line with `stop`.
    """
    is_end, is_unequal = bad.reason in OF_FILES, bad.reason == "unequal"
    if bad.reason in HARMLESS:
        return
    if files.is_evaluation:
        ends = "mend it, or get it again: of validation and test sets no line is left out"
    elif is_unequal and not files.allow_unequal:
        ends = "where one is missing all pairs after it are shifted: mend them,"
        ends += f" or take the first {bad.line - 1} lines of both with `--allow-unequal`"
    elif is_end and on_bad_line in ("stop", "drop"):
        ends = "get it again, or mend it, or take what is before that with `--on-bad-line salvage`"
    elif on_bad_line == "stop" and not is_unequal:
        ends = "mend it, or leave such lines out with `--on-bad-line drop`"
    else:
        return
    if is_unequal:
        other = next(path for path in files.paths if str(path) != bad.file)
        rule, begins = f"have as many lines as `{other}` ({bad.line - 1})", f"has {bad.excerpt}"
    else:
        what = BAD_REASONS[bad.reason] + (f" ({bad.excerpt})" if bad.excerpt else "")
        where = f"from line or unit {bad.line} on it cannot" if is_end else f"line or unit {bad.line} cannot be used"
        rule, begins = "be text that can be read whole", f"{where}: {what}"
    raise UserError(f"`{bad.file}` must {rule}, but {begins}; {ends}.")


MAX_CHARACTERS = 16_000_000  # of a block, on both sides together: it ends there if its pairs are long
_TOGETHER = 1000


class Pairs(NamedTuple):
    """Any number of sentence pairs in their order: sources, targets and further references; the line of each pair."""

    texts: Sequence[list[str]]
    lines: Sequence[int]


class Segment(NamedTuple):
    """One entry of a structured file; `reason` is why it is no pair, if known, `excerpt` what to show of it."""

    source: str | None
    target: str | None
    references: Sequence[str] = ()
    reason: str | None = None
    excerpt: str = ""


def gather(segments: Iterator[Segment], files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs among the segments of a corpus, and the others as bad lines. A `Fault` ends them in one more."""
    name, number = str(files.paths[0]), files.first - 1
    held: list[tuple[int, Segment]] = []
    try:
        for number, segment in enumerate(segments, files.first):
            if reason := segment.reason or _fault_of(segment, may_be_empty=files.is_evaluation):
                excerpt = segment.excerpt or excerpt_of(f"{segment.source or ''} {segment.target or ''}".strip())
                yield BadLine(name, number, reason, excerpt)
                continue
            held.append((number, segment))
            if len(held) == _TOGETHER:
                yield _pairs(held)
                held = []
    except Fault as fault:
        yield BadLine(name, number + 1, fault.reason, excerpt_of(fault.message), fault.lost)
    if held:
        yield _pairs(held)


def _fault_of(segment: Segment, may_be_empty: bool) -> str | None:
    if segment.source is None or segment.target is None:
        return "untranslated"
    texts = (segment.source, segment.target, *filter(None, segment.references))
    allowed = (None, "empty") if may_be_empty else (None,)
    return next((reason for reason in map(text_fault, texts) if reason not in allowed), None)


def _pairs(held: Sequence[tuple[int, Segment]]) -> Pairs:
    texts = zip(*((one.source or "", one.target or "", *one.references) for _, one in held), strict=True)
    return Pairs(list(map(list, texts)), [number for number, _ in held])


def assemble(found: Iterator[Pairs | BadLine], size: int) -> Iterator[Block | BadLine]:
    """Blocks of `size` pairs (the last and one of very long pairs have fewer), after the bad lines before them."""
    texts: list[list[str]] = []
    lines: list[int] = []
    characters = 0
    for item in found:
        if isinstance(item, BadLine):
            yield item
            continue
        texts = texts or [[] for _ in item.texts]
        for held, more in zip(texts, item.texts, strict=True):
            held += more
        lines += item.lines
        characters += _characters(item.texts)
        while len(lines) >= size or characters > MAX_CHARACTERS:
            yield _block([held[:size] for held in texts], lines[:size])
            texts, lines = [held[size:] for held in texts], lines[size:]
            characters = _characters(texts)
    if lines:
        yield _block(texts, lines)


def _characters(texts: Sequence[list[str]]) -> int:
    return sum(sum(map(len, side)) for side in texts)


def _block(texts: Sequence[list[str]], lines: list[int]) -> Block:
    source, target, *references = texts
    return Block(source, target, np.array(lines, np.int64), tuple(references))
