"""What the benchmarks share: a report that shows its tables, compares figures with floors, and says where it ran.

How times and ratios are taken is in `timing.py`. A report shows every table at once on the screen; at the end it
compares the figures with their floors and, if asked, writes Markdown and JSON with the machine, the versions, the
commit and the command.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text
from timing import ROOT, Floor, shown, surroundings, where_and_how

from fairseq_mtmoe.io.files import write_text
from fairseq_mtmoe.io.tables import markdown_table

RESULTS = ROOT / "benchmarks" / "results"
SLACK = 0.2  # by how much of its floor a figure may miss it before a check fails


@dataclass(frozen=True)
class Figure:
    what: str
    value: float
    floor: Floor
    spread: tuple[float, float] | None

    def cells(self) -> list[str]:
        """The line: what, the value, its spread, the floor, and whether it is met."""
        spread = "" if self.spread is None else f"{shown(self.spread[0])}-{shown(self.spread[1])}"
        return [self.what, shown(self.value), spread, str(self.floor), "yes" if self.floor.met(self.value) else "no"]


class Report:
    """What a benchmark found: shown while it comes in, written at the end.

    Args:
        name: of the files under `benchmarks/results/`, without suffix.
        title: the report's heading.
    """

    def __init__(self, name: str, title: str) -> None:
        self.name = name
        self.title = title
        self.surroundings = surroundings()  # now: files may change while a benchmark runs
        self.figures: list[Figure] = []
        self._parts: list[str] = []
        self._tables: list[dict[str, object]] = []
        self._raw: dict[str, object] = {}
        self._console = Console(width=None if sys.stdout.isatty() else 160)
        self._console.rule(Text(title))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> None:
        """Show a table, and remember it for the report. The first column names the row; numbers are shortened."""
        cells = [[shown(value) for value in row] for row in rows]
        self._show(title, columns, cells, note)
        self._parts.append("\n\n".join(filter(None, [f"## {title}", note, markdown_table(columns, cells)])))
        values = [[value if isinstance(value, int | float) else str(value) for value in row] for row in rows]
        self._tables.append({"title": title, "columns": list(columns), "rows": values, "note": note})

    def figure(self, what: str, value: float, floor: Floor, spread: tuple[float, float] | None = None) -> None:
        """Remember a figure that has a floor; `spread` are its quartiles."""
        self.figures.append(Figure(what, value, floor, spread))

    def text(self, markdown: str) -> None:
        self._console.print(Text(f"{markdown}\n"))
        self._parts.append(markdown)

    def raw(self, what: str, values: object) -> None:
        """Remember what only the JSON holds: the seconds that `interleaved` gave, for instance."""
        self._raw[what] = values

    def finish(self, write: bool, check: bool) -> None:
        """Show the figures beside their floors.

        Args:
            write: write `<results>/<name>.md` and `.json`.
            check: leave the program with status 1 if a floor is missed by more than 20%.
        """
        columns = ["figure", "value", "quartiles", "floor", "met"]
        lines = [figure.cells() for figure in self.figures]
        self._show("Floors", columns, lines, "")
        if write:
            floors = [f"## Floors\n\n{markdown_table(columns, lines)}"] if lines else []
            head = [f"# {self.title}", where_and_how(self.surroundings), *floors]
            write_text(RESULTS / f"{self.name}.md", "\n\n".join([*head, *self._parts]) + "\n")
            write_text(RESULTS / f"{self.name}.json", json.dumps(self._as_data(), indent=1, ensure_ascii=False) + "\n")
        missed = [figure for figure in self.figures if not figure.floor.met(figure.value, SLACK)]
        for figure in missed if check else ():
            print(f"missed by more than {SLACK:.0%}: {figure.what} is {shown(figure.value)}, must be {figure.floor}",
                  file=sys.stderr)  # fmt: skip
        if check and missed:
            sys.exit(1)

    def _show(self, title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], note: str) -> None:
        table = Table(title=Text(title), caption=Text(note), title_justify="left", caption_justify="left")
        for index, column in enumerate(columns):
            table.add_column(Text(column), justify="right" if index else "left")
        for row in cells:
            table.add_row(*map(Text, row))
        self._console.print(table)

    def _as_data(self) -> dict[str, object]:
        figures = [
            {"what": figure.what, "value": figure.value, "spread": figure.spread, "floor": str(figure.floor),
             "met": figure.floor.met(figure.value)}
            for figure in self.figures
        ]  # fmt: skip
        return {"title": self.title, **self.surroundings, "floors": figures, "tables": self._tables, "raw": self._raw}


def report_name(base: str, small: bool, device: str = "cpu") -> str:
    """What a report is called, so that one of small sizes, or of a card, takes no other's place."""
    return "_".join([base, *(["small"] if small else []), *([device] if device != "cpu" else [])])


def report_options(small: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A command's options `--small`, which means this, `--check`, which is small, and `--write`."""
    options = (
        click.option("--write", is_flag=True, help="Write the report to benchmarks/results."),
        click.option("--check", is_flag=True, help="Small; exit with 1 where a floor is missed by more than 20%."),
        click.option("--small", is_flag=True, help=small),
    )
    return lambda command: functools.reduce(lambda made, option: option(made), options, command)
