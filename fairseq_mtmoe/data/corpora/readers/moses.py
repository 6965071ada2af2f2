"""Two files, one for each side: line by line, the lines of one are the translations of the other's (Moses' format)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq_mtmoe.data.corpora.blocks import BadLine, CorpusFiles
from fairseq_mtmoe.data.corpora.readers.assembling import Pairs, usable_pairs
from fairseq_mtmoe.data.corpora.readers.faults import Fault
from fairseq_mtmoe.data.corpora.readers.lines import Batch, read_lines


def read_moses(files: CorpusFiles) -> Iterator[Pairs | BadLine]:
    """The pairs of two files. Lines that one of them has more than the other are one `BadLine` at the end."""
    spans = files.part.spans if files.part else (None, None)
    return read_sides(files, [read_lines(path, span=span) for path, span in zip(files.paths, spans, strict=True)])


def read_sides(files: CorpusFiles, lines: Sequence[Iterator[Batch]]) -> Iterator[Pairs | BadLine]:
    """The pairs of two files, one of each line that is read of them.

    Args:
        lines: of each file.
    """
    sides = [_Side(path, batches) for path, batches in zip(files.paths, lines, strict=True)]
    source, target = sides
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

    def __init__(self, path: Path, batches: Iterator[Batch]) -> None:
        self.name = str(path)
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


def unequal(longer: str, lines: int, fewer: int) -> BadLine:
    """What is said of two files of which one has more lines.

    Args:
        longer: the path of that one.
        lines: how many it has.
        fewer: how many the other one has.
    """
    return BadLine(longer, fewer + 1, "unequal", f"{lines} lines", lines - fewer)


def _ends(sides: list[_Side], line: int) -> Iterator[BadLine]:
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
        yield unequal(longer.name, line - 1 + lost, line - 1)
