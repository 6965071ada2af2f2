"""Tables and sentences on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

WIDE = 200  # columns, where nobody says how many there are


def show(table: Table) -> None:
    """Show a table, which is not broken where nobody says how wide it may be."""
    console = Console()
    (console if console.is_terminal else Console(width=WIDE)).print(table)


def say(lines: Iterable[object]) -> None:
    """Print lines as they are."""
    for line in lines:
        Console().print(str(line), soft_wrap=True, highlight=False, markup=False)


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Show a table of two columns of text, and others of numbers; its last row is a sum."""
    table = Table(*head[:2])
    for name in head[2:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row, end_section=row is rows[-2])
    Console().print(table)
