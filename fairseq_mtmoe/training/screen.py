"""`--log-format rich`: a line of progress, tables, and the log in a file.

The line shows the time left. Each validation prints a table, with losses in bits.
The complete log, as with `--log-format simple`, is in `--log-file`, by default `train.log` in
`--save-dir`. Without a terminal, the line of progress is printed after the first updates, and then
every 30 seconds.
"""

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from fairseq.logging import metrics, progress_bar
from fairseq.logging.meters import AverageMeter
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Column, Table
from torch import distributed as dist

from fairseq_mtmoe.core.files import open_in_place
from fairseq_mtmoe.core.protocols import training_task

NAME = "rich"
LOG_FILE = "train.log"
SECONDS_BETWEEN_LINES = 30.0  # without a terminal
FIRST_UPDATES = (1, 2, 5, 10)  # after these, the line has figures before `--log-interval`
OF_ALL = ("ppl", "bleu", "chrf")  # figures of the whole validation
SHOWN = {
    "loss": "loss",
    "ppl": "perplexity",
    "bleu": "BLEU",
    "chrf": "chrF++",
    "wps": "tokens/s",
    "sampling_temperature": "temperature",
}
FOR_SCREEN = {"for_screen": True}  # `extra` of log records that the screen shows
LINE = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"

Row = tuple[str, Any, dict[str, Any]]  # of a task or group: name, loss, figures by name


class Screen:
    """The console output of one run."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.trainer: Any = None
        self.bar = Progress(
            "{task.description}",
            BarColumn(10),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            "{task.fields[left]}",
            TextColumn(
                "{task.fields[figures]}",
                table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"),
            ),
            console=self.console,
            transient=True,
            expand=True,
        )
        self._task: TaskID | None = None
        self._last_line = self._began = time.monotonic()  # again at the first update
        self._updates_before = 0  # the updates that earlier processes made
        self._before: dict[tuple[str, str], float] = {}  # the figures of the last validation

    def step(self, epoch: int, batches: int, left: int) -> None:
        """Show progress before an update.

        batches: number of updates in the epoch; left: number of updates left, with this one.
        """
        done = self.trainer.get_num_updates()
        if self._task is None:
            self._task = self.bar.add_task("", total=None, completed=done, left="", figures="")
            self._began = time.monotonic()
            self._updates_before = done
            if self.console.is_terminal:
                self.bar.start()
        options = self.trainer.cfg.optimization
        epochs_left = (options.max_epoch or math.inf) - epoch
        limit = min(done + left + epochs_left * batches, options.max_update or math.inf)
        total = limit if math.isfinite(limit) else None
        time_left = self._time_left(done, limit)
        is_first = self._updates_before < done and done in FIRST_UPDATES
        if is_first:  # fairseq shows no figures yet
            self.show_figures(metrics.get_smoothed_values("train_inner"))
        self.bar.update(
            self._task, description=f"epoch {epoch}", total=total, completed=done, left=time_left
        )
        is_due = time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES
        if not self.console.is_terminal and (is_due or is_first):
            self._last_line = time.monotonic()
            (task,) = self.bar.tasks
            updates = f"{done:,.0f}" if total is None else f"{done:,.0f} of {total:,.0f}"
            words = f"epoch {epoch}: {updates} updates"
            line = f"{words}{', ' * bool(time_left)}{time_left} {task.fields['figures']}".rstrip()
            self.console.print(line, highlight=False, soft_wrap=True)

    def _time_left(self, done: int, total: float) -> str:
        """Return the time that the run will take; empty if unknown.

        It is estimated by the updates and validations so far.
        """
        updates = done - self._updates_before
        if not updates or math.isinf(total):
            return ""
        seconds = (time.monotonic() - self._began) / updates * (total - done)
        return f"{timedelta(seconds=int(seconds))} left"

    def show_figures(self, stats: Mapping[str, Any]) -> None:
        """Show the last updates' figures at the end of the line of progress."""
        if self._task is not None:
            self.bar.update(self._task, figures=_in_words(stats))

    def show_validation(self, subset: str, stats: Mapping[str, Any]) -> None:
        """Print a table of a validation: tasks such as language pairs, groups, and all."""
        title = f"{subset} after {_number(stats.get('num_updates', 0)):,.0f} updates"
        owner = getattr(self.trainer, "task", None)
        pairs: Sequence[str] = getattr(owner, "lang_pairs", None) or ()
        task = training_task(owner)
        table = Table("pair" if pairs else "task", title=title, title_justify="left")
        for column in ("loss (bits)", "figure", "value", "change"):
            table.add_column(column, justify="right")
        groups = [group.name for group in reversed(task.groups())]
        order = pairs or getattr(owner, "task_names", ())
        for name, loss, figures in _rows(stats, order, groups):
            if name in (*groups[:1], "all"):
                table.add_section()
            cells = (name, "" if loss is None else f"{_number(loss):.3f}")
            for figure, value in figures.items():
                now = _number(value)
                before = self._before.get((name, figure))
                self._before[name, figure] = now
                change = "" if before is None else f"{now - before:+.2f}"
                table.add_row(*cells, SHOWN.get(figure, figure), f"{now:.2f}", change)
                cells = ("", "")
        self.console.print(table)
        best = next((name for name in stats if name.startswith("best_")), None)
        if best is not None:
            name = best.removeprefix("best_")
            self.console.print(f"best {SHOWN.get(name, name)} so far {_number(stats[best]):.3f}")


def _rows(stats: Mapping[str, Any], order: Sequence[str], groups: Sequence[str]) -> Iterator[Row]:
    """Yield a validation's rows: tasks in this order, groups, all.

    Perplexity is the first figure. A figure is logged as `task_figure`, and a group's mean of
    metrics under the group's name. A task's second set is named `task/set`.
    """
    places = {name: place for place, name in enumerate(order)}
    names = [
        key.removesuffix("_loss")
        for key in stats
        if key.endswith("_loss") and not key.endswith("nll_loss")
    ]
    tasks = [name for name in names if name not in groups]
    tasks.sort(key=lambda name: places.get(name.partition("/")[0], len(places)))
    ordered = sorted(stats.items(), key=lambda item: not item[0].endswith("_ppl"))
    for name in (*tasks, *groups):
        figures: dict[str, Any] = {}
        for key, value in ordered:
            task, _, figure = key.rpartition("_")
            if task == name:
                figures[figure] = value
        loss = figures.pop("loss", None)
        if name in stats:
            figures["mean"] = stats[name]
        yield name, loss, figures
    if "all" not in stats:
        figures = {figure: stats[figure] for figure in OF_ALL if figure in stats}
        yield "all", stats.get("loss"), figures


_screen = Screen()


class RichProgressBar(progress_bar.SimpleProgressBar):
    """fairseq's progress bar of an epoch or a validation, drawn on the run's screen.

    Its lines go to the log.
    """

    def __init__(
        self, iterable: Any, epoch: int | None, prefix: str | None, log_interval: int
    ) -> None:
        super().__init__(iterable, epoch, prefix, log_interval)
        self.is_training = prefix is None and epoch is not None and _screen.trainer is not None
        self.is_shown = progress_bar.logger.getEffectiveLevel() <= logging.INFO  # on rank 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            if self.is_training and self.is_shown:
                _screen.step(self.epoch, self.size, self.size - self.i)
            yield item

    def log(
        self, stats: Mapping[str, Any], tag: str | None = None, step: int | None = None
    ) -> None:
        """Log and show figures; called by fairseq every `--log-interval` updates."""
        super().log(stats, tag, step)
        if self.is_shown:
            _screen.show_figures(stats)

    def print(
        self, stats: Mapping[str, Any], tag: str | None = None, step: int | None = None
    ) -> None:
        """Log and show figures; called by fairseq after an epoch or a validation."""
        super().print(stats, tag, step)
        if self.is_shown and self.is_training:
            _screen.console.print(f"epoch {self.epoch}: {_in_words(stats)}", highlight=False)
        elif self.is_shown:
            _screen.show_validation(tag or "validation", stats)


def follow(trainer: Any) -> None:
    """Show the progress of a trainer; called by our trainer."""
    _screen.trainer = trainer
    if is_rich(trainer.cfg.common.log_format):
        log_to_file(trainer.cfg)  # a process that fairseq spawned has not called it yet
        Finalize(None, close, exitpriority=0)  # which such a process runs instead of `atexit`


def close() -> None:
    """Restore the terminal; idempotent."""
    if _screen.bar.live.is_started:
        _screen.bar.stop()


def log_to_file(cfg: Any) -> None:
    """Show `FOR_SCREEN` records, warnings and errors; log all to a file; idempotent.

    Ranks other than 0 log only warnings and errors, as in fairseq.
    """
    root = logging.getLogger()
    if any(isinstance(handler, RichHandler) for handler in root.handlers):
        return
    screen = RichHandler(
        console=_screen.console, show_path=False, markup=False, show_level=False, show_time=False
    )
    screen.addFilter(
        lambda record: record.levelno >= logging.WARNING or hasattr(record, "for_screen")
    )
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.addHandler(screen)
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", 0))
    if rank > 0:
        root.setLevel(logging.WARNING)
        return
    path = Path(cfg.common.log_file or Path(cfg.checkpoint.save_dir) / LOG_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not cfg.common.log_file:
        open_in_place(path, "a").close()  # refuses a link
    file = logging.FileHandler(path, encoding="utf-8")
    file.setFormatter(logging.Formatter(LINE, "%Y-%m-%d %H:%M:%S"))
    # The file is complete, even if LOGLEVEL hides records from the screen.
    root.setLevel(logging.INFO)
    root.addHandler(file)
    how_to_end = f"Ctrl-C, or `kill {os.getpid()}`, saves and ends the run."
    _screen.console.print(f"The log is in {path}.\n{how_to_end}", highlight=False, soft_wrap=True)


@contextmanager
def training_log(cfg: Any, main: Callable[..., Any]) -> Iterator[None]:
    """Write a training's log to a file inside the context, with `--log-format rich`."""
    if not is_rich(cfg.common.log_format) or not main.__module__.endswith("train"):
        yield
        return
    log_to_file(cfg)
    cfg.common.log_file = None  # fairseq would write some lines twice
    try:
        yield
    finally:
        close()


def is_rich(log_format: Any) -> bool:
    """Return whether this is `--log-format rich`."""
    return str(log_format) == NAME


def _number(value: Any) -> float:
    return float(value.avg if isinstance(value, AverageMeter) else value)


def _in_words(stats: Mapping[str, Any]) -> str:
    figures = [
        (word, progress_bar.format_stat(stats[name]))
        for name, word in SHOWN.items()
        if name in stats
    ]
    return ", ".join(f"{word} {value}" for word, value in figures if value is not None)
