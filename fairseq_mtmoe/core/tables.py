"""A table with the same cells on the screen, in Markdown, in LaTeX and on a page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table as ScreenTable
from tabulate import SEPARATING_LINE, tabulate

from fairseq_mtmoe.core.errors import visible

# Private characters that stand for bold type while LaTeX's special characters are escaped.
_BOLD = "\ue000"
_END = "\ue001"
_SIGNS = {"±": r"$\pm$", "−": "$-$", _BOLD: r"\textbf{", _END: "}"}


@dataclass(frozen=True)
class Table:
    """Rows of cells, and further rows below a line."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: Sequence[Sequence[str]] = ()
    texts: int | Sequence[int] = 1  # number of leading columns with text, or their indices

    @property
    def sides(self) -> list[Literal["left", "right"]]:
        """The side to which each column is aligned: texts `left`, numbers `right`."""
        sides: list[Literal["left", "right"]] = ["right"] * len(self.columns)
        for index in range(self.texts) if isinstance(self.texts, int) else self.texts:
            sides[index] = "left"
        return sides

    def on_screen(self, title: str = "") -> ScreenTable:
        """Return the table for rich's console."""
        table = ScreenTable(title=_shown(title) or None, title_justify="left", title_style="bold")
        for column, side in zip(self.columns, self.sides, strict=True):
            table.add_column(_shown(column), justify=side)
        for row in self.rows:
            table.add_row(*map(_shown, row))
        table.add_section()
        for row in self.below:
            table.add_row(*map(_shown, row), style="bold")
        return table

    def in_markdown(self) -> str:
        """Return one Markdown table, which has no lines; pipes in cells are escaped."""
        rows = []
        for row in (self.columns, *self.rows, *self._marked("**", "**")):
            rows.append([str(cell).replace("|", "\\|") for cell in row])
        return self._laid_out(rows, "pipe")

    def in_latex(self) -> str:
        """Return a `tabular` for `\\usepackage{booktabs}`, with special characters escaped."""
        rows: list[Any] = [self.columns, *self.rows]
        if self.below:
            rows += [SEPARATING_LINE, *self._marked(_BOLD, _END)]
        text = self._laid_out(rows, "latex_booktabs")
        for sign, command in _SIGNS.items():
            text = text.replace(sign, command)
        return text + "\n"

    def _laid_out(self, rows: Sequence[Any], form: str) -> str:
        """Return rows in a form of tabulate; the first one is the head."""
        return str(
            tabulate(rows[1:], rows[0], tablefmt=form, colalign=self.sides, disable_numparse=True)
        )

    def _marked(self, start: str, end: str) -> list[list[str]]:
        rows = []
        for row in self.below:
            rows.append([cell and f"{start}{cell}{end}" for cell in row])
        return rows


def _shown(text: str) -> str:
    """Return a text for rich's console, without markup and control characters."""
    return escape(visible(text))


def with_error(score: float, error: float, form: str = ".2f") -> str:
    """Format a score such as `70.40 ±2.74`; without the error if it is NaN."""
    text = format(score, form)
    if math.isnan(error):
        return text
    return f"{text} ±{format(error, form.lstrip('+'))}"


def bullets(settings: Mapping[str, object]) -> list[str]:
    """Return a Markdown list of settings."""
    return [f"- {name}: {value}" for name, value in settings.items()]


def document(parts: Iterable[str], lines: Iterable[str]) -> str:
    """Join paragraphs, and a list below them."""
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"
