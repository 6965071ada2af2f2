"""Helpers of all commands: options, tables, progress bars."""

import functools
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from fairseq_mtmoe.core.errors import UserError, raise_invalid, visible
from fairseq_mtmoe.core.files import checkpoint_file

PATH = click.Path(path_type=Path)
WIDE = 200  # columns, if the output is no terminal
WHOLE = 10_000  # columns, for addresses of any length
SECONDS_BETWEEN_LINES = 60.0  # of progress, if the output is no terminal


def expect_checkpoints(*models: str | Path) -> None:
    """Load the plugin, if all files of MODEL or FILE:FILE exist (UserError)."""
    for path in ":".join(map(str, models)).split(":"):
        checkpoint_file(path)
    from fairseq_mtmoe import register

    register()


def list_option(*declarations: str, **settings: Any) -> Callable[[Any], Any]:
    """Return the decorator of a comma-separated option; repeated lists are joined."""
    return click.option(*declarations, multiple=True, callback=_joined_names, **settings)


def _joined_names(
    _context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    names = tuple(entry.strip() for entry in ",".join(values).split(",") if entry.strip())
    if values and not names:
        raise_invalid(option.opts[0], "names separated by commas", ",".join(values))
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"`{option.opts[0]}` must name each once, but names {twice[0]!r} twice.")
    return names


def _together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a decorator that adds these options in their order."""
    return lambda command: functools.reduce(
        lambda decorated, option: option(decorated), reversed(options), command
    )


batch_options = _together(
    click.option(
        "--max-tokens",
        type=click.IntRange(1),
        help="Maximum number of tokens in a batch; for translation 12000, unless --batch-size is "
        "given.",
    ),
    click.option(
        "--batch-size",
        "--max-sentences",
        type=click.IntRange(1),
        help="Maximum number of sentences in a batch; for benchmark tasks 32, unless --max-tokens "
        "is given.",
    ),
)
length_options = _together(
    click.option(
        "--lenpen",
        type=float,
        default=1.0,
        help="Length penalty: > 1 favours longer output.",
    ),
    click.option(
        "--max-len-a",
        type=float,
        default=0.0,
        help="a: a translation has at most a · (source tokens) + b tokens. fairseq-generate counts "
        "the longest source of the batch instead of each sentence's own.",
    ),
    click.option("--max-len-b", type=int, default=200, help="b: see --max-len-a."),
)
precision_options = _together(
    click.option("--fp16", is_flag=True, help="Compute in float16 (half precision)."),
    click.option(
        "--bf16",
        is_flag=True,
        help="Compute in bfloat16 (half precision with float32's range); fastest on recent GPUs.",
    ),
    click.option("--cpu", is_flag=True, help="Do not use a GPU."),
)
workers_option = click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=1,
    help="Number of CPU processes, which share the cores and the memory of the model.",
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Replace existing output.")


def show(table: Table, columns: int = WIDE) -> None:
    """Print a table, of at most these columns if the output is no terminal."""
    console = Console()
    (console if console.is_terminal else Console(width=columns)).print(table)


def say(lines: Iterable[object], console: Console | None = None) -> None:
    """Print lines without markup, highlighting, wrapping or control characters."""
    for line in lines:
        (console or Console()).print(visible(line), soft_wrap=True, highlight=False, markup=False)


def as_file(lines: Iterable[str]) -> str:
    """Return the lines as a file's content."""
    return "".join(f"{line}\n" for line in lines)


class ProgressLines(Progress):
    """Progress of a command without a terminal: a line each minute, in place of a bar."""

    def __init__(self, units: str, console: Console) -> None:
        super().__init__(console=console, disable=True, speed_estimate_period=1800.0)
        self._units = units
        self._last_line = time.monotonic()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        """Advance the task, and print a line if a minute has passed since the last one."""
        super().advance(task_id, advance)
        self._print_line(task_id)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change the task, and print a line if a minute has passed since the last one."""
        super().update(task_id, **changes)
        self._print_line(task_id)

    def _print_line(self, task_id: TaskID) -> None:
        if time.monotonic() - self._last_line < SECONDS_BETWEEN_LINES:
            return
        self._last_line = time.monotonic()
        task = self._tasks[task_id]
        line = f"{task.description or 'done'}: {task.completed:,.0f}"
        if task.total is not None:
            line += f" of {task.total:,.0f}"
        line += f" {self._units}"
        if task.time_remaining is not None:
            line += f", {timedelta(seconds=int(task.time_remaining))} left"
        say([line], self.console)


def progress_bar(units: str, console: Console | None = None, transient: bool = False) -> Progress:
    """Return a progress bar on stderr; without a terminal, lines of progress.

    A `transient` bar disappears at the end.
    """
    console = console or Console(stderr=True)
    if not console.is_terminal:
        return ProgressLines(units, console)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(units),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=transient,
    )


@contextmanager
def quiet_fairseq() -> Iterator[None]:
    """Silence fairseq's and torch's repeated messages; of this package keep warnings."""
    levels = {
        **dict.fromkeys(("fairseq", "fairseq_cli"), logging.ERROR),
        **dict.fromkeys(("fairseq_mtmoe", "hydra", "matplotlib", "asyncio"), logging.WARNING),
    }
    before = {name: logging.getLogger(name).level for name in levels}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning)
            warnings.filterwarnings("ignore", message=".*pin_memory")
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
