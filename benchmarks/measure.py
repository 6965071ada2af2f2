"""What the benchmarks share: their command, and a report that compares figures with floors and says where it ran.

How times and ratios are taken is in `timing.py`. A report shows every table at once on the screen; at the end it
compares the figures with their floors and, if asked, writes Markdown and JSON.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console
from rich.table import Table as ScreenTable
from rich.text import Text
from timing import ROOT, Floor, Ratio, shown, surroundings, where_and_how

from fairseq_mtmoe.core.files import write_text
from fairseq_mtmoe.core.tables import Table

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
        self._raw: dict[str, object] = {}
        self._console = Console(width=None if sys.stdout.isatty() else 160)
        self._console.rule(Text(title))

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> None:
        """Show a table, and remember it for the report. The first column names the row; numbers are shortened."""
        cells = [[shown(value) for value in row] for row in rows]
        self._show(title, columns, cells, note)
        self._parts.append("\n\n".join(filter(None, [f"## {title}", note, Table(columns, cells).in_markdown()])))

    def speeds(
        self,
        title: str,
        seconds: Mapping[str, Sequence[float]],
        peer: str,
        amounts: Sequence[float],
        unit: str,
        note: str = "",
    ) -> None:
        """Show seconds and speeds of systems, compared with a peer's, and remember every single time.

        Args:
            seconds: of each system in each turn.
            amounts: how much of the unit the systems do in each turn.
        """
        rows = []
        for name, times in seconds.items():
            speed = median(amount / time for amount, time in zip(amounts, times, strict=True))
            rows.append([name, median(times), speed, Ratio.of(seconds[peer], times)])
        self.table(title, ["system", "s", f"{unit}/s", f"speed over {peer}'s (quartiles)"], rows, note)
        self.raw(f"seconds, {title}", seconds)

    def figure(self, what: str, value: float, floor: Floor, spread: tuple[float, float] | None = None) -> None:
        """Remember a figure that has a floor; `spread` are its quartiles."""
        self.figures.append(Figure(what, value, floor, spread))

    def ratio(self, what: str, own: Sequence[float], peer: Sequence[float], floor: Floor) -> None:
        """Remember the ratio of two systems' seconds, which has a floor."""
        ratio = Ratio.of(own, peer)
        self.figure(what, ratio.median, floor, (ratio.low, ratio.high))

    def text(self, markdown: str) -> None:
        self._console.print(Text(f"{markdown}\n"))
        self._parts.append(markdown)

    def raw(self, what: str, values: object) -> None:
        """Remember what only the JSON holds, such as every single time."""
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
            floors = [f"## Floors\n\n{Table(columns, lines).in_markdown()}"] if lines else []
            head = [f"# {self.title}", where_and_how(self.surroundings), *floors]
            write_text(RESULTS / f"{self.name}.md", "\n\n".join([*head, *self._parts]) + "\n")
            figures = [{**vars(one), "floor": str(one.floor), "met": one.floor.met(one.value)} for one in self.figures]
            data = {"title": self.title, **self.surroundings, "floors": figures, "raw": self._raw}
            write_text(RESULTS / f"{self.name}.json", json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        missed = [figure for figure in self.figures if not figure.floor.met(figure.value, SLACK)]
        for figure in missed if check else ():
            print(f"missed by more than {SLACK:.0%}: {figure.what} is {shown(figure.value)}, must be {figure.floor}",
                  file=sys.stderr)  # fmt: skip
        if check and missed:
            sys.exit(1)

    def _show(self, title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], note: str) -> None:
        table = ScreenTable(title=Text(title), caption=Text(note), title_justify="left", caption_justify="left")
        for index, column in enumerate(columns):
            table.add_column(Text(column), justify="right" if index else "left")
        for row in cells:
            table.add_row(*map(Text, row))
        self._console.print(table)


def benchmark(name: str, title: str, small: str, repetitions: int = 9) -> Callable[[Callable[..., None]], Any]:
    """Make a command of a function that fills a report.

    The function gets the report, `small`, `repetitions` and its own options.

    Args:
        name: of the report; that of small sizes has another, so that it does not take its place.
        title: the report's heading.
        small: what `--small` and `--check` mean.
        repetitions: by default; 0 for a command without them.
    """
    repeated = click.option("--repetitions", type=click.IntRange(1), default=repetitions)

    def decorate(fill: Callable[..., None]) -> Any:
        @click.command(context_settings={"show_default": True})
        @click.option("--small", is_flag=True, help=small)
        @click.option("--check", is_flag=True, help="Small; exit with 1 where a floor is missed by more than 20%.")
        @click.option("--write", is_flag=True, help="Write the report to benchmarks/results.")
        @functools.wraps(fill)
        def command(small: bool, check: bool, write: bool, **options: Any) -> None:
            report = Report(f"{name}_small" if small or check else name, title)
            fill(report, small=small or check, **options)
            report.finish(write, check)

        return repeated(command) if repetitions else command

    return decorate


def run(command: str, *arguments: object, text: str = "", **variables: str) -> str:
    """Return what a command of this environment prints about a text."""
    words = [str(Path(sys.executable).with_name(command)), *map(str, arguments)]
    environment = {**os.environ, **variables}
    done = subprocess.run(words, input=text, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout
