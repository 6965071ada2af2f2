"""Two files, one for each side: line by line, the lines of one are the translations of the other's (Moses' format).

IWSLT's training files (`train.tags.en-de.en`) have lines between the sentences that say what a talk is. Text that is
taken as it is (`text`) has no line that is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np

from fairseq_mtmoe.data.corpora.blocks import BadLine, Content, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.errors import Fault
from fairseq_mtmoe.data.corpora.readers.lines import Batch, read_lines
from fairseq_mtmoe.data.corpora.readers.segments import Pairs, usable_pairs
from fairseq_mtmoe.io.files import text_batches

ABOUT = ("doc", "url", "talkid", "keywords", "speaker", "reviewer", "translator")
"""IWSLT's tags of what is said about a talk. One file may have more of them: translators are named in one alone."""

# Of a line that cannot be used its excerpt is looked at, which may end too early and has signs in the place of others.
_ABOUT = re.compile(rf"[\s\ufffd]*</?(?:{'|'.join(ABOUT)})\b")
_TEXT = re.compile(r"\s*<(title|description)>(.*?)(?:</\1>\s*)?")
_AT_ONCE = 2000  # lines


def read_moses(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of two files. Lines that one of them has more than the other are one `BadLine` at the end."""
    spans = files.part.spans if files.part else ((0, None),) * 2
    return _read_sides(files, [read_lines(*one) for one in zip(files.contents, spans, strict=True)])


def read_iwslt(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of two files, by the number of the sentence. What one of them has more is one `BadLine` at the end."""
    return _read_sides(files, list(map(_sentences, files.contents)))


def _sentences(content: Content) -> Iterator[Batch]:
    """The lines of text alone, titles and descriptions among them."""
    for batch in read_lines(content):
        kept = Batch([])
        for index, line in enumerate(batch.texts):
            bad = batch.bad.get(index)
            if _ABOUT.match(line if bad is None else bad.excerpt):
                continue
            if bad is not None:
                kept.bad[len(kept.texts)] = bad
            match = _TEXT.fullmatch(line)
            kept.texts.append(match[2] if match else line)
        if kept.texts:
            yield kept


def read_text(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of two files in UTF-8, line by line, also those without text on one side.

    Raises:
        UserError: a file is no text.
    """
    spans = files.part.spans if files.part else ((0, None),) * 2
    sides = [text_batches(content.path, span=span) for content, span in zip(files.contents, spans, strict=True)]
    one, other = map(chain.from_iterable, sides)
    done = files.part.first - 1 if files.part else 0
    while True:
        source, target = list(islice(one, _AT_ONCE)), list(islice(other, _AT_ONCE))
        both = min(len(source), len(target))
        if both:
            yield Pairs(source[:both], target[:both], np.arange(done + 1, done + 1 + both, dtype=np.int64))
        done += both
        if len(source) != len(target):
            rest = max(len(source), len(target)) - both + sum(1 for _ in chain(one, other))
            yield _unequal(str(files.paths[len(source) < len(target)]), done + rest, done)
            return
        if not both:
            return


def _read_sides(files: CorpusFiles, lines: Sequence[Iterator[Batch]]) -> Iterator[Pairs | BadLine]:
    """The pairs of two files, one of each line that is read of them.

    Args:
        lines: of each file.
    """
    sides = source, target = [_Side(str(path), batches) for path, batches in zip(files.paths, lines, strict=True)]
    first = files.part.first if files.part else 1
    while number := min(side.ready() for side in sides):
        one, other = source.take(number), target.take(number)
        named = {index: (target.name, why) for index, why in other.bad.items()}
        named |= {index: (source.name, why) for index, why in one.bad.items()}
        yield from usable_pairs(one.texts, other.texts, first, named, (source.name, target.name), files.is_evaluation)
        first += number
    yield from _ends(sides, first)


class _Side:
    """The lines of one file, as many at a time as both have."""

    def __init__(self, name: str, batches: Iterator[Batch]) -> None:
        self.name = name
        self.fault: Fault | None = None
        self._batches = batches
        self._batch = Batch([])
        self._at = 0

    def ready(self) -> int:
        """How many lines can be taken; 0 at the end."""
        while self._at == len(self._batch.texts) and not self.fault:
            try:
                self._batch, self._at = next(self._batches), 0
            except StopIteration:
                break
            except Fault as fault:
                self.fault = fault
        return len(self._batch.texts) - self._at

    def take(self, number: int) -> Batch:
        """The next lines."""
        start, self._at = self._at, self._at + number
        return self._batch.part(start, self._at)

    def count_rest(self) -> int:
        """How many lines are left, one that was cut included."""
        rest = 0
        while number := self.ready():
            rest += number
            self._at += number
        return rest + (self.fault.lost if self.fault else 0)


def _unequal(longer: str, lines: int, fewer: int) -> BadLine:
    """What is said of two files of which one has more lines."""
    return BadLine(longer, fewer + 1, "unequal", f"{lines} lines", lines - fewer)


def _ends(sides: Sequence[_Side], line: int) -> Iterator[BadLine]:
    """What is wrong at the end of two files: one of them has more lines, or breaks."""
    rest = [side.count_rest() for side in sides]
    lost = max(rest)
    for side in sides:
        if side.fault:
            lines = f"; {lost} lines are lost" if lost else ""
            yield BadLine(side.name, line, side.fault.reason, f"{side.fault.message}{lines}", lost)
            lost = 0
    if lost and rest[0] != rest[1]:
        longer = sides[0] if rest[0] else sides[1]
        yield _unequal(longer.name, line - 1 + lost, line - 1)
