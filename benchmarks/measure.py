"""What the benchmarks share: interleaved timing, ratios with their spread, floors, and reports that say where they ran.

A benchmark times all systems in turn, so that a change of the machine's mood meets each of them, and takes ratios turn
by turn. Its report shows every table at once on the screen; at the end it compares the figures with their floors and,
if asked, writes Markdown and JSON with the machine, the versions, the commit and the command.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from fairseq_mtmoe.io.files import write_text
from fairseq_mtmoe.io.markdown import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SLACK = 0.2  # by how much of its floor a figure may miss it before a check fails
PACKAGES = ("torch", "numpy", "scipy", "fairseq-fixed", "fairseq", "fairscale", "transformers")
SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "THP_MEM_ALLOC_ENABLE")  # of the environment; they change timings


def interleaved(
    works: Mapping[str, Callable[[], object]],
    repetitions: int = 7,
    warmups: int = 2,
    device: str = "cpu",
    prepare: Mapping[str, Callable[[], object]] | None = None,
) -> dict[str, list[float]]:
    """Seconds of each work in each repetition, in the order of the repetitions.

    Args:
        works: what to time, by name. All run once per repetition; a repetition starts with another one each time.
        warmups: repetitions that come first and do not count.
        device: on "cuda…", seconds of the device's own clock, with synchronisation; else wall clock.
        prepare: what is done before a work of the same name, outside of its time.
    """
    names = list(works)
    prepare = prepare or {}
    clock = _seconds_on_device if device.startswith("cuda") else _seconds
    found: dict[str, list[float]] = {name: [] for name in names}
    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
        bar = progress.add_task("timing", total=(warmups + repetitions) * len(names))
        for repetition in range(-warmups, repetitions):
            first = repetition % len(names)
            for name in names[first:] + names[:first]:
                progress.update(bar, description=name)
                if name in prepare:
                    prepare[name]()
                seconds = clock(works[name])
                if repetition >= 0:
                    found[name].append(seconds)
                progress.advance(bar)
    return found


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _seconds_on_device(work: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000


@dataclass(frozen=True)
class Ratio:
    """The median and the quartiles of the turn-by-turn ratios of two systems' seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, own: Sequence[float], peer: Sequence[float]) -> Ratio:
        """Own seconds over the peer's, both from one interleaved run (the same number, at least one)."""
        ratios = [ours / theirs for ours, theirs in zip(own, peer, strict=True)]
        # Python 3.11 and 3.12 want two values for quartiles.
        low, _, high = statistics.quantiles(ratios * 2 if len(ratios) == 1 else ratios, n=4, method="inclusive")
        return cls(statistics.median(ratios), low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


@dataclass(frozen=True)
class Floor:
    """What a figure has to reach: at most `limit`, or at least."""

    limit: float
    at_most: bool = True

    def met(self, value: float, slack: float = 0.0) -> bool:
        """Whether a value reaches it, or misses it by no more than this share of the limit. NaN does not."""
        if self.at_most:
            return value <= self.limit * (1 + slack)
        return value >= self.limit * (1 - slack)

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {shown(self.limit)}"


@dataclass(frozen=True)
class Figure:
    """One line of the floors' table."""

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
        """Show a paragraph, and remember it for the report."""
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


def shown(value: object) -> str:
    """A cell of a table: numbers with three digits that count, or all digits before the point."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"


def surroundings() -> dict[str, Any]:
    """What a number depends on: machine, threads, settings, versions, commit and command."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue  # not every benchmark needs every package
    return {
        "command": _command(),
        "commit": _commit(),
        "machine": _machine(),
        "threads": torch.get_num_threads(),
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        "load_before": round(os.getloadavg()[0], 2),  # processes that wanted a core in the minute before
        "versions": versions,
    }


def where_and_how(found: Mapping[str, Any]) -> str:
    """The surroundings as a paragraph of Markdown."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    settings = "".join(f", {name}={value}" for name, value in found["settings"].items())
    return (
        f"`{found['command']}`, commit {found['commit']}.\n{found['machine']}; {found['threads']} threads of "
        f"torch{settings}; load {found['load_before']} in the minute before.\n{versions}."
    )


def _machine() -> str:
    processor = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), processor)
    cores = f"{processor}, {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores"
    cards = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{cores}, {torch.backends.cpu.get_cpu_capability()}{cards}, {platform.system()}"


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    # Results are written one after the other: those before this one are no change of what is measured.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with uncommitted changes" if changed else "")


def _command() -> str:
    script = Path(sys.argv[0]).resolve()
    shown_script = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return shlex.join(["python", str(shown_script), *sys.argv[1:]])
