"""`--log-format rich`: one line of progress with the time left, a table at each validation, and the log in a file.

fairseq's formats print everything that is known: a configuration of 5 kB, the model's modules, and a line of 900
characters for a validation of 15 pairs. With this one the screen has what somebody who waits wants to see, and all
else, in the words of `--log-format simple`, is in `--log-file`, by default `train.log` in `--save-dir`. Where there is
no terminal the line of progress comes now and then.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from fairseq.logging import progress_bar
from fairseq.logging.meters import AverageMeter
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from torch import distributed as dist

from fairseq_mtmoe.protocols import GroupsTasks

NAME = "rich"
LOG_FILE = "train.log"
SECONDS_BETWEEN_LINES = 30.0  # without a terminal
OF_TRANSLATIONS = ("bleu", "chrf")  # figures beside perplexity, where they are asked for
SHOWN = {"loss": "loss", "ppl": "perplexity", "wps": "tokens/s", "sampling_temperature": "temperature"}
OF_TEXT = ("loss", "ppl")  # figures of a task or group that are no metrics; of `nll_loss` the last part
FOR_SCREEN = {"for_screen": True}  # `extra` of a log record that somebody who waits wants to see
LINE = "%(asctime)s | %(levelname)s | %(name)s | %(message)s"


class Screen:
    """What one run shows, from its start to its end.

    Args:
        console: where to.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console()
        self.trainer: Any = None
        self._bar = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(10),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(table_column=Column(no_wrap=True)),
            TextColumn("left", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[figures]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=self.console,
            transient=True,
            expand=True,
        )
        self._task: TaskID | None = None
        self._last_line = time.monotonic()
        self._perplexities: dict[str, float] = {}
        self._scores: dict[str, float] = {}

    def step(self, epoch: int, batches: int, left: int) -> None:
        """Called before each update.

        Args:
            epoch: the epoch, from 1.
            batches: how many updates it has.
            left: how many of them are to come, this one included.
        """
        done = self.trainer.get_num_updates()
        if self._task is None:
            self._task = self._bar.add_task("", total=None, completed=done, figures="")
            if self.console.is_terminal:
                self._bar.start()
        total = self._total(done + left, epoch, batches)
        self._bar.update(self._task, description=f"epoch {epoch}", total=total, completed=done)
        if not self.console.is_terminal and time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.console.print(self._line(), highlight=False, soft_wrap=True)

    def _line(self) -> str:
        """The line of progress where it cannot be drawn over."""
        (task,) = self._bar.tasks
        left = "" if task.time_remaining is None else f", {timedelta(seconds=int(task.time_remaining))} left"
        total = "" if task.total is None else f" of {task.total:,.0f}"
        return f"{task.description}: {task.completed:,.0f}{total} updates{left} {task.fields['figures']}".rstrip()

    def _total(self, epoch_end: int, epoch: int, batches: int) -> float | None:
        """The run's updates, as far as they are known: fairseq ends at `--max-update` or `--max-epoch`."""
        options = self.trainer.cfg.optimization
        limits = [float(options.max_update)] if options.max_update else []
        if options.max_epoch:
            limits.append(epoch_end + (options.max_epoch - epoch) * batches)
        return min((limit for limit in limits if math.isfinite(limit)), default=None)

    def show_figures(self, stats: Mapping[str, Any]) -> None:
        """What the last updates came to, at the end of the line of progress."""
        if self._task is not None:
            self._bar.update(self._task, figures=_in_words(stats))

    def show_epoch(self, epoch: int | None, stats: Mapping[str, Any]) -> None:
        """One line for an epoch that is over."""
        self.console.print(f"epoch {epoch}: {_in_words(stats)}", highlight=False)

    def show_validation(self, subset: str, stats: Mapping[str, Any]) -> None:
        """A table of what was validated: tasks, such as language pairs, groups of them, and all of it."""
        title = f"{subset} after {_number(stats.get('num_updates', 0)):,.0f} updates"
        named = self._group_names()
        if any(name in stats for name in named):  # a benchmark's means are logged by their names alone
            self.console.print(self._score_table(title, stats, named))
        else:
            self.console.print(self._perplexity_table(title, stats, named))
        best = next((name for name in stats if name.startswith("best_")), None)
        if best is not None:
            self.console.print(f"best {best.removeprefix('best_')} so far {_shown(stats[best])}")

    def _group_names(self) -> list[str]:
        """Groups of tasks, from those with least data to those with most."""
        task = self.trainer.task if self.trainer is not None else None
        return [group.name for group in reversed(task.groups())] if isinstance(task, GroupsTasks) else []

    def _perplexity_table(self, title: str, stats: Mapping[str, Any], named: Sequence[str]) -> Table:
        found = [name.removesuffix("_ppl") for name in stats if name.endswith("_ppl")]
        alone = [name for name in found if name not in named]
        scores = [name for name in OF_TRANSLATIONS if name in stats]
        table = _table(title, "loss", "perplexity", "change", *scores)
        for section in (alone, [name for name in named if name in found]):
            for name in section:
                self._add_row(table, name, f"{name}_", stats, scores, end_section=name is section[-1])
        self._add_row(table, "all", "", stats, scores, end_section=True)
        return table

    def _score_table(self, title: str, stats: Mapping[str, Any], named: Sequence[str]) -> Table:
        """Of tasks with metrics, logged as `task_metric` beside the loss; a group's mean is logged by its name."""
        table = _table(title, "loss", "metric", "score", "change")
        for key in stats:
            name, _, metric = key.rpartition("_")
            if key in named or metric in OF_TEXT or f"{name}_loss" not in stats:
                continue
            shown = [name, _shown(stats[f"{name}_loss"])] if name not in _names(table) else ["", ""]
            score = _number(stats[key])
            table.add_row(*shown, metric, f"{score:.2f}", self._score_change(key, score))
        table.add_section()
        for name in (name for name in named if name in stats):
            score = _number(stats[name])
            table.add_row(name, "", "mean", f"{score:.2f}", self._score_change(name, score))
        return table

    def _score_change(self, key: str, score: float) -> str:
        before = self._scores.get(key)
        self._scores[key] = score
        return "" if before is None else f"{score - before:+.2f}"

    def _add_row(
        self, table: Table, name: str, prefix: str, stats: Mapping[str, Any], scores: Sequence[str], end_section: bool
    ) -> None:
        loss, perplexity = stats.get(f"{prefix}loss"), stats.get(f"{prefix}ppl")
        if perplexity is None:
            return
        now, before = _number(perplexity), self._perplexities.get(name)
        self._perplexities[name] = now
        change = "" if before is None or not before else f"{now / before - 1:+.1%}"
        figures = [_shown(stats[f"{prefix}{score}"]) for score in scores]
        table.add_row(
            name, "" if loss is None else _shown(loss), _shown(perplexity), change, *figures, end_section=end_section
        )

    def close(self) -> None:
        """The run is over, or failed: the terminal is as it was."""
        if self._bar.live.is_started:
            self._bar.stop()


_screen = Screen()


class RichProgressBar(progress_bar.SimpleProgressBar):
    """fairseq's bar for one epoch or one validation, which draws on the run's screen; its lines go to the log."""

    def __init__(self, iterable: Any, epoch: int | None, prefix: str | None, log_interval: int) -> None:
        super().__init__(iterable, epoch, prefix, log_interval)
        self.is_training = prefix is None and epoch is not None and _screen.trainer is not None
        self.is_shown = progress_bar.logger.getEffectiveLevel() <= logging.INFO  # in the first process

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            if self.is_training and self.is_shown:
                _screen.step(self.epoch, self.size, self.size - self.i)
            yield item

    def log(self, stats: Mapping[str, Any], tag: str | None = None, step: int | None = None) -> None:
        """Called by fairseq every `--log-interval` updates."""
        super().log(stats, tag, step)
        if self.is_shown:
            _screen.show_figures(stats)

    def print(self, stats: Mapping[str, Any], tag: str | None = None, step: int | None = None) -> None:
        """Called by fairseq at the end of an epoch or a validation."""
        super().print(stats, tag, step)
        if self.is_shown and self.is_training:
            _screen.show_epoch(self.epoch, stats)
        elif self.is_shown:
            _screen.show_validation(tag or "validation", stats)


def follow(trainer: Any) -> None:
    """Called by our trainer: whose updates the screen counts."""
    _screen.trainer = trainer
    if is_rich(trainer.cfg.common.log_format):
        log_to_file(trainer.cfg)  # where fairseq has spawned this process, nothing of ours came before


def close() -> None:
    """The run is over in this process: its terminal is as it was. Safe to call twice."""
    _screen.close()


def log_to_file(cfg: Any) -> None:
    """Let the screen have what is `FOR_SCREEN`, warnings and errors, and a file have everything. Safe to call twice.

    Processes other than the first have warnings and errors alone to say, as in fairseq.
    """
    root = logging.getLogger()
    if any(isinstance(handler, RichHandler) for handler in root.handlers):
        return
    screen = RichHandler(console=_screen.console, show_path=False, markup=False, show_level=False, show_time=False)
    screen.addFilter(lambda record: record.levelno >= logging.WARNING or hasattr(record, "for_screen"))
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.addHandler(screen)
    if not _is_first_process():
        root.setLevel(logging.WARNING)
        return
    path = Path(cfg.common.log_file or Path(cfg.checkpoint.save_dir) / LOG_FILE)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = logging.FileHandler(path, encoding="utf-8")
    file.setFormatter(logging.Formatter(LINE, "%Y-%m-%d %H:%M:%S"))
    root.setLevel(logging.INFO)  # the file has everything, whatever LOGLEVEL keeps from the screen before
    root.addHandler(file)
    _screen.console.print(f"The log is in {path}.", highlight=False, soft_wrap=True)


def _is_first_process() -> bool:
    if dist.is_available() and dist.is_initialized():
        return bool(dist.get_rank() == 0)
    return int(os.environ.get("RANK", 0)) == 0


def with_screen(original: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's `call_main`; with `--log-format rich` a training's log goes to a file."""

    @functools.wraps(original)
    def call_main(cfg: Any, main: Callable[..., Any], **kwargs: Any) -> Any:
        if not is_rich(cfg.common.log_format) or not main.__module__.endswith("train"):
            return original(cfg, main, **kwargs)
        log_to_file(cfg)
        cfg.common.log_file = None  # fairseq would write some of the lines there once more
        try:
            return original(cfg, main, **kwargs)
        finally:
            close()

    return call_main


class _LateOptions(logging.Filter):
    """Holds back the options and the model, which fairseq logs in thousands of characters, until the training begins.

    A run that ends before that ends with a sentence, which nobody would find below them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held: deque[logging.LogRecord] = deque(maxlen=2)  # of this run

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is to be shown now: fairseq logs these two as objects, and all else as text."""
        if not isinstance(record.msg, str):
            self.held.append(record)
        return isinstance(record.msg, str)


_late_options = _LateOptions()
_logger_of_command = logging.getLogger("fairseq_cli.train")


def hold_options_back() -> None:
    """Have the training command log its options and its model when `show_options` is called."""
    _logger_of_command.addFilter(_late_options)


def show_options() -> None:
    """Log what was held back."""
    while _late_options.held:
        _logger_of_command.callHandlers(_late_options.held.popleft())


def is_rich(log_format: Any) -> bool:
    """Whether this is the value of `--log-format` for which this module is there."""
    return log_format is not None and str(log_format) == NAME


def _table(title: str, *columns: str) -> Table:
    """An empty one, with a column of names before those of numbers."""
    table = Table(title=title, title_justify="left")
    table.add_column()
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _names(table: Table) -> list[str]:
    """What stands in the first column."""
    return [str(cell) for cell in table.columns[0].cells]


def _number(value: Any) -> float:
    return float(value.avg if isinstance(value, AverageMeter) else value)


def _shown(value: Any) -> str:
    return f"{_number(value):.3f}"


def _in_words(stats: Mapping[str, Any]) -> str:
    known = [(word, progress_bar.format_stat(stats[name])) for name, word in SHOWN.items() if name in stats]
    return ", ".join(f"{word} {value}" for word, value in known if value is not None)
