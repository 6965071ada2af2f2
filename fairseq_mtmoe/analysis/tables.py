"""A table that is shown on the screen and written to Markdown with the same cells."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table as ScreenTable

from fairseq_mtmoe.io.markdown import markdown_table


@dataclass(frozen=True)
class Table:
    """Rows of cells, and others below a line.

    Attributes:
        texts: how many of the first columns hold text; numbers are aligned to the right.
        bold: whether the rows below the line sum up, and are bold.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: Sequence[Sequence[str]] = ()
    texts: int = 1
    bold: bool = True

    def on_screen(self) -> ScreenTable:
        """For rich's console."""
        table = ScreenTable()
        for index, column in enumerate(self.columns):
            table.add_column(escape(column), justify="left" if index < self.texts else "right")
        for row in self.rows:
            table.add_row(*map(escape, row))
        table.add_section()
        for row in self.below:
            table.add_row(*map(escape, row), style="bold" if self.bold else None)
        return table

    def in_markdown(self) -> str:
        """In one table, which has no lines."""
        below = [[f"**{cell}**" if cell and self.bold else cell for cell in row] for row in self.below]
        return markdown_table(self.columns, [*self.rows, *below], self.texts)


def with_error(score: float, error: float) -> str:
    """Such as `70.40 ±2.74`; without an error that is not known."""
    return f"{score:.2f}" + ("" if math.isnan(error) else f" ±{error:.2f}")
