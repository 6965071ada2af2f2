"""Tables in Markdown, as all reports of the project have them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tabulate import tabulate


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]], texts: int | Sequence[int] = 1) -> str:
    """A table whose cells are shown as they are.

    Args:
        texts: how many of the first columns hold text, or which ones do; all others hold numbers, aligned to the right.
    """
    of_text = range(texts) if isinstance(texts, int) else texts
    table: str = tabulate(
        [[_escaped(cell) for cell in row] for row in rows],
        [_escaped(column) for column in columns],
        tablefmt="pipe",
        colalign=["left" if index in of_text else "right" for index in range(len(columns))],
        disable_numparse=True,
    )
    return table


def _escaped(cell: object) -> str:
    return str(cell).replace("|", "\\|")
