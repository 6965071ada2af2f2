"""A table that is shown on the screen and written to Markdown and LaTeX with the same cells, and what is around it."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table as ScreenTable
from tabulate import SEPARATING_LINE, tabulate

from fairseq_mtmoe.analysis.run_log import plain
from fairseq_mtmoe.io.pages import markdown_table

# What stands for bold type while LaTeX's own signs are escaped; Unicode gives these to no character.
_BOLD, _END = "\ue000", "\ue001"
_SIGNS = {"±": r"$\pm$", "−": "$-$", _BOLD: r"\textbf{", _END: "}"}


@dataclass(frozen=True)
class Table:
    """Rows of cells, and others below a line."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: Sequence[Sequence[str]] = ()
    texts: int = 1  # the number of first columns that hold text; numbers are aligned to the right
    bold: bool = True  # whether the rows below the line sum up, and are bold

    def on_screen(self, title: str = "") -> ScreenTable:
        """For rich's console."""
        table = ScreenTable(title=escape(title) or None, title_justify="left", title_style="bold")
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
        return markdown_table(self.columns, [*self.rows, *self._marked("**", "**")], self.texts)

    def in_latex(self) -> str:
        """A `tabular` for a page with `\\usepackage{booktabs}`, in which every sign of a cell stands for itself."""
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


def with_error(score: float, error: float, digits: int = 2) -> str:
    """Such as `70.40 ±2.74`; without an error that is not known."""
    return f"{score:.{digits}f}" + ("" if math.isnan(error) else f" ±{error:.{digits}f}")


def bullets(settings: Mapping[str, object]) -> list[str]:
    """Lines of a list in Markdown."""
    return [f"- {name}: {value}" for name, value in settings.items()]


def document(parts: Iterable[str], lines: Iterable[str]) -> str:
    """Paragraphs and, below them, a list."""
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"


def as_json(content: object) -> str:
    """JSON for people too, with null for what is not finite."""
    return json.dumps(plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
