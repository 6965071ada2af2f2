"""A table with the same cells on the screen, in Markdown and in LaTeX."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table as ScreenTable
from tabulate import SEPARATING_LINE, tabulate

from fairseq_mtmoe.analysis.run_log import plain
from fairseq_mtmoe.errors import visible
from fairseq_mtmoe.io.pages import markdown_table

# Private characters that stand for bold type while LaTeX's special characters are escaped.
_BOLD, _END = "\ue000", "\ue001"
_SIGNS = {"±": r"$\pm$", "−": "$-$", _BOLD: r"\textbf{", _END: "}"}


@dataclass(frozen=True)
class Table:
    """Rows of cells, and further rows below a line."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: Sequence[Sequence[str]] = ()
    texts: int = 1  # number of leading columns with text; numbers are aligned to the right
    bold: bool = True  # whether the rows below the line are bold

    def on_screen(self, title: str = "") -> ScreenTable:
        """Return the table for rich's console."""
        table = ScreenTable(title=_shown(title) or None, title_justify="left", title_style="bold")
        for index, column in enumerate(self.columns):
            table.add_column(_shown(column), justify="left" if index < self.texts else "right")
        for row in self.rows:
            table.add_row(*map(_shown, row))
        table.add_section()
        for row in self.below:
            table.add_row(*map(_shown, row), style="bold" if self.bold else None)
        return table

    def in_markdown(self) -> str:
        """Return one Markdown table, which has no lines."""
        return markdown_table(self.columns, [*self.rows, *self._marked("**", "**")], self.texts)

    def in_latex(self) -> str:
        """Return a `tabular` for `\\usepackage{booktabs}`, with special characters escaped."""
        below = self._marked(_BOLD, _END)
        text: str = tabulate(
            [*self.rows, *([SEPARATING_LINE] if below else []), *below],
            self.columns,
            tablefmt="latex_booktabs",
            colalign=["left" if index < self.texts else "right" for index in range(len(self.columns))],
            disable_numparse=True,
        )
        for sign, command in _SIGNS.items():
            text = text.replace(sign, command)
        return text + "\n"

    def _marked(self, start: str, end: str) -> list[list[str]]:
        return [[f"{start}{cell}{end}" if cell and self.bold else cell for cell in row] for row in self.below]


def _shown(text: str) -> str:
    """Return a text for rich's console, without markup and control characters."""
    return escape(visible(text))


def with_error(score: float, error: float, digits: int = 2) -> str:
    """Format a score such as `70.40 ±2.74`; without the error if it is NaN."""
    return f"{score:.{digits}f}" + ("" if math.isnan(error) else f" ±{error:.{digits}f}")


def bullets(settings: Mapping[str, object]) -> list[str]:
    """Return a Markdown list of settings."""
    return [f"- {name}: {value}" for name, value in settings.items()]


def document(parts: Iterable[str], lines: Iterable[str]) -> str:
    """Join paragraphs, and a list below them."""
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def as_json(content: object) -> str:
    """Return indented JSON, with null for numbers that are not finite."""
    return json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
