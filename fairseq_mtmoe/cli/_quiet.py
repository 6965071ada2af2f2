"""What commands show that use fairseq again and again: less of its remarks, and how far they are."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def quiet_fairseq() -> Iterator[None]:
    """It and torch repeat the same remarks for every pair and epoch, and it lets others say what they debug; of what we
    log, warnings are left."""
    levels = {
        **dict.fromkeys(("fairseq", "fairseq_cli"), logging.ERROR),
        **dict.fromkeys(("fairseq_mtmoe", "hydra", "matplotlib"), logging.WARNING),
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


def progress_bar(units: str, console: Console | None = None) -> Progress:
    """A bar that counts units on a terminal, on stderr."""
    console = console or Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(units))
    times = TimeElapsedColumn(), TimeRemainingColumn()
    return Progress(*columns, *times, console=console, disable=not console.is_terminal)
