"""What can be wrong in a corpus' file, in words that a report can use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from fairseq_mtmoe.data.corpora.blocks import BadLine, Content, CorpusFiles
from fairseq_mtmoe.errors import UserError

MAX_LINE = 65_536
"""Characters. A longer line is no sentence, and a file without line ends must not fill the memory."""

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
"""Every reason of a `BadLine`, and what it means in a report."""

OF_FILES = frozenset({"line ends", "markup", "charset", "truncated", "damaged"})
"""What ends the reading of a file: nobody knows how much is lost with its rest."""

HARMLESS = frozenset({"untranslated"})
"""What is no fault of the file: catalogs and translation memories are rarely complete."""

OnBadLine = Literal["stop", "drop", "salvage"]
"""What to do about what cannot be read as a pair, from the strictest on: see `check`."""


class Fault(Exception):
    """What makes the rest of a file unreadable. Readers turn it into a `BadLine`.

    Args:
        reason: a key of `BAD_REASONS`.
        message: where it is, in the file's own terms.
        lost: number of lines or segments that it is known to cost, without those on the other side of a pair of files.
    """

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
    """Raise a `UserError` where a bad line ends the run; others are counted and left out.

    A line of training text is left out if the user does not say `stop`. A file whose rest cannot be read ends the run,
    as nobody knows how much is lost, unless he says `salvage`. Two files of unequal length do, whatever he says of
    lines, unless `files.allow_unequal`: nobody knows where a line is missing. Validation and test sets are read whole
    or not at all: scores of a part of them are no one else's.
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
        place = f"from line or unit {bad.line} on it cannot" if is_end else f"line or unit {bad.line} cannot be used"
        rule, begins = "be text that can be read whole", f"{place}: {what}"
    raise UserError(f"`{bad.file}` must {rule}, but {begins}; {ends}.")
