"""README's tables that are made of results: cells with their spread, rows, and the place where they stand.

`figures.py --write` writes them between two marks.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from report_glue import beyond_chance

from fairseq_mtmoe.analysis.comparison import spread
from fairseq_mtmoe.analysis.tables import with_error
from fairseq_mtmoe.io.markdown import markdown_table

WIDTH = 138  # of README's lines


@dataclass(frozen=True)
class Cell:
    """A mean over seeds.

    Attributes:
        mean: of them.
        error: its standard error; NaN where it is not known.
        is_difference: whether it has a sign, and two digits.
        is_starred: whether chance alone would hardly give such a difference.
        digits: after the point; by default one, of a difference two.
    """

    mean: float
    error: float = math.nan
    is_difference: bool = False
    is_starred: bool = False
    digits: int | None = None

    def __str__(self) -> str:
        sign, star = ("+" if self.is_difference and self.mean >= 0 else ""), (" *" if self.is_starred else "")
        digits = self.digits if self.digits is not None else 2 if self.is_difference else 1
        return sign + with_error(self.mean, self.error, digits) + star

    def figures(self, name: str) -> Iterator[tuple[str, str]]:
        """The numbers as they are shown; whole ones are counts, and no figures that a text quotes."""
        if self.digits == 0:
            return
        mean, *error = str(self).removesuffix(" *").split(" ±")
        yield f"{name}: mean", mean
        for shown in error:
            yield f"{name}: standard error", shown


@dataclass(frozen=True)
class Row:
    """One system: its title, how many seeds it has, and cells by their columns."""

    title: str
    seeds: int
    cells: dict[str, Cell]


@dataclass(frozen=True)
class Table:
    """Systems of one study.

    Attributes:
        name: of its figures.
        head: of its first column.
        rows: of which not all have all columns.
    """

    name: str
    head: str
    rows: list[Row]

    def figures(self) -> Iterator[tuple[str, str]]:
        """Every figure in it, with its name."""
        for row in self.rows:
            for column, cell in row.cells.items():
                yield from cell.figures(f"{self.name}, {row.title}, {column}")

    def markdown(self) -> str:
        """The table."""
        columns = list(dict.fromkeys(column for row in self.rows for column in row.cells))
        cells = [[row.title, row.seeds, *(row.cells.get(column, "") for column in columns)] for row in self.rows]
        return markdown_table([self.head, "seeds", *columns], cells)


def difference_cell(values: Sequence[float]) -> Cell:
    """The mean of differences with the same seed, with its standard error."""
    found = spread(values)
    return Cell(found.mean, found.standard_error, True, beyond_chance(found, len(values)))


def in_text(text: str, name: str, block: str) -> str:
    """A text with what stands between the two marks of this name, each a line."""
    begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    return re.sub(f"(?<={begin}\n).*?(?={end})", lambda _: f"{block}\n", text, count=1, flags=re.DOTALL)


def lines(text: str) -> str:
    """A paragraph as README breaks it."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
