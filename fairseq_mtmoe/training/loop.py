"""fairseq's training loop: what it does after each batch, and how it ends when a signal ends it.

A validation that a signal ends is owed: the checkpoint says so, and the run that goes on from it makes up for it first.
So it validates and saves at the same places as one that nobody interrupted.
"""

from __future__ import annotations

import functools
import logging
import math
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from fairseq import checkpoint_utils
from torch import distributed as dist

from fairseq_mtmoe.protocols import RunObserver, StopsAfterUpdates
from fairseq_mtmoe.training import failures, signals

Result = tuple[list[float | None], bool]  # the validation losses, and whether the run is to end

OWED = "owed_validation"  # in a checkpoint's extra state
RESETS = ("reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader")


_validate_and_save: Callable[..., Result] | None = None  # fairseq's, of the training command once that is loaded


@dataclass(frozen=True)
class TrainingPosition:
    """A position in the training as a checkpoint has it, for fairseq's functions that ask its iterator."""

    epoch: int
    is_end: bool
    state: dict[str, Any]

    def end_of_epoch(self) -> bool:
        """Whether the epoch is over."""
        return self.is_end

    def state_dict(self) -> dict[str, Any]:
        """The state from which an iterator goes on."""
        return self.state


def after_updates(original: Callable[..., Result]) -> Callable[..., Result]:
    """The training command's `validate_and_save`, which is called after each batch."""
    global _validate_and_save
    _validate_and_save = original

    @functools.wraps(original)
    def validate_and_save(
        cfg: Any, trainer: Any, task: Any, epoch_itr: Any, valid_subsets: list[str], end_of_epoch: bool
    ) -> Result:
        """As fairseq's, after updates and at the ends of epochs: a batch that was left out left all as it was."""
        if not isinstance(trainer, StopsAfterUpdates):
            return original(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        stop = trainer.stopped_by
        owed: dict[str, Any] | None = None
        result: Result = [None], False
        try:
            if end_of_epoch or not trainer.left_out:
                result = original(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        except signals.Stopped:
            owed = {"epoch": epoch_itr.epoch, "end_of_epoch": end_of_epoch}
            stop = trainer.stopped_by
        if stop is None or result[1]:
            is_last = end_of_epoch and epoch_itr.next_epoch_idx > (cfg.optimization.max_epoch or math.inf)
            if (result[1] or is_last) and isinstance(task, RunObserver):
                task.ended()
            return result
        _save_and_end(cfg.checkpoint, trainer, epoch_itr, owed, stop)

    return validate_and_save


def _save_and_end(
    cfg: Any, trainer: Any, epoch_itr: Any, owed: dict[str, Any] | None, number: signal.Signals
) -> NoReturn:
    trainer.owed_validation = owed
    with failures.naming_lost_processes():
        checkpoint_utils.save_checkpoint(cfg, trainer, epoch_itr, None)
        if failures.several_processes():
            # Whoever starts processes may kill the others when one ends.
            dist.barrier(group=failures.made_between_hosts())
    if trainer.is_data_parallel_master:
        done = f"{number.name} ended the run after update {trainer.get_num_updates()}"
        print(f"{done}: {_how_to_go_on(cfg, trainer.checkpoint_suffix)}.", file=sys.stderr, flush=True)
    raise SystemExit(signals.exit_code(number))


def _how_to_go_on(cfg: Any, suffix: str) -> str:
    for name in ("no_save", "no_last_checkpoints"):
        if getattr(cfg, name):
            return f"with `--{name.replace('_', '-')}` it saves nothing to go on from"
    once = [f"`--{name.replace('_', '-')}`" for name in RESETS if getattr(cfg, name)]
    if cfg.restore_file != "checkpoint_last.pt":
        once.insert(0, "`--restore-file`")
    command = f"the same command without {', '.join(once)}" if once else "the same command"
    return f"{command} goes on from `{cfg.save_dir}/checkpoint_last{suffix}.pt`"


def without_unknown(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The training command's `get_training_stats`: the figures of a line, without those that there are none of."""

    @functools.wraps(original)
    def get_training_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
        return original({name: value for name, value in stats.items() if value is not None})

    return get_training_stats


class LateOptions(logging.Filter):
    """Holds back the options and the model, which fairseq logs in thousands of characters, until the training begins.

    A run that ends before that ends with a sentence, which nobody would find below them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: deque[logging.LogRecord] = deque(maxlen=2)  # of this run

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is to be shown now: fairseq logs these two as objects, and all else as text."""
        if isinstance(record.msg, str):
            return True
        self._held.append(record)
        return False

    def show(self) -> None:
        """Log what was held back."""
        while self._held:
            _logger_of_command.callHandlers(self._held.popleft())


_logger_of_command = logging.getLogger("fairseq_cli.train")
_late_options = LateOptions()


def saving_on_signals(original: Callable[..., Result]) -> Callable[..., Result]:
    """The training command's `train`, an epoch, in which there are updates after whose end a run can be saved."""
    _logger_of_command.addFilter(_late_options)

    @functools.wraps(original)
    def train(*args: Any, **kwargs: Any) -> Result:
        with signals.watched():  # fairseq-hydra-train loads plugins too late to be watched from its start
            signals.saves_from_now_on()
            _late_options.show()
            return original(*args, **kwargs)

    return train


def is_training_command() -> bool:
    """Whether fairseq's training command is what runs here."""
    return _validate_and_save is not None


def owed_by(extra_state: dict[str, Any] | None) -> TrainingPosition | None:
    """The place of the validation that a checkpoint owes, from what is saved beside its model."""
    owed = (extra_state or {}).get(OWED)
    return (
        TrainingPosition(owed["epoch"], owed["end_of_epoch"], (extra_state or {})["train_iterator"]) if owed else None
    )


def make_up_for(position: TrainingPosition, trainer: Any) -> None:
    """Validate, and save, where a signal kept the run from it; the run may then be over."""
    if _validate_and_save is None:
        return
    cfg = trainer.cfg
    subsets = cfg.dataset.valid_subset.split(",")
    losses, is_over = _validate_and_save(cfg, trainer, trainer.task, position, subsets, position.is_end)
    if position.is_end:
        trainer.lr_step(position.epoch, losses[0])
    if is_over:
        cfg.optimization.max_epoch = -1  # no epoch is begun
