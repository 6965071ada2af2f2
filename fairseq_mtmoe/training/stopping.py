"""SIGINT (Ctrl-C), SIGTERM and SIGUSR1: a run saves after its update and ends.

A second signal ends the run at once.

Python runs signal handlers between its own instructions, but not while the process waits for others
in C++ code. Therefore a thread reads the signals from a socket, to which Python writes them.
"""

from __future__ import annotations

import functools
import logging
import math
import multiprocessing
import os
import queue
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.context import SpawnProcess
from types import SimpleNamespace
from typing import Any, NoReturn

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from torch import distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException

from fairseq_mtmoe.core.errors import flag
from fairseq_mtmoe.core.protocols import training_task
from fairseq_mtmoe.training import failures, screen

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
# Seconds in which signals count as one: `timeout` and torchrun may send the same signal twice
AS_ONE = 1.0

_RESETS = ("reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader")
_watch: _Watch | None = None
# fairseq's function, once the training command is imported
_validate_and_save: Callable[..., Result] | None = None

Result = tuple[list[float | None], bool]  # the validation losses, and whether the run is to end


class Stopped(Exception):
    """Raised inside a validation that a signal ends early."""


# ---- the signals of this process ----


class _Watch:
    """Handles this process's signals, except ignored ones.

    A script's `&` ignores SIGINT.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        # How a run that was ended at once goes on; None before the first update
        self.how_to_go_on: Callable[[], str] | None = None
        self._since = 0.0
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        watched = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in watched}
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def close(self) -> None:
        """Restore the signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(self._wakeup)
        # The thread ends, also if a forked child has the socket, too.
        self._writer.shutdown(socket.SHUT_WR)
        self._writer.close()

    def _listen(self) -> None:
        while number := self._reader.recv(1):
            if number[0] in self._handlers:
                self._take(signal.Signals(number[0]))
        self._reader.close()

    def _take(self, number: signal.Signals) -> None:
        now = time.monotonic()
        if self.received is not None:
            if now - self._since > AS_ONE and self.how_to_go_on is not None:
                _end_at_once(number, f"at once; {self.how_to_go_on()}")
            return
        self.received = number
        self._since = now
        spawned = [
            child for child in multiprocessing.active_children() if isinstance(child, SpawnProcess)
        ]
        if self.how_to_go_on is not None:
            _say(
                f"{number.name}: the run saves after this update and ends; a second signal ends "
                "it at once."
            )
        elif spawned:  # they train and print how the run ends; torch's own message adds nothing
            logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.ERROR)
            for child in spawned:
                with suppress(ProcessLookupError):  # the process has ended
                    if child.pid:
                        os.kill(child.pid, number)
        else:
            _end_at_once(
                number,
                "before its first update; nothing is lost, and the same command starts it again",
            )


def _end_at_once(number: signal.Signals, how: str) -> None:
    _say(f"{number.name} ended the run {how}.")
    os._exit(exit_code(number))


def _say(sentence: str) -> None:
    """Print on rank 0, past Python's streams, which the main thread may be using."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        os.write(2, f"{sentence}\n".encode())


def exit_code(number: signal.Signals) -> int:
    """Return a shell's exit code of a signal, such as 130 for SIGINT."""
    return 128 + number


@contextmanager
def watched() -> Iterator[None]:
    """Handle the signals inside this context, so that they do not end the process."""
    global _watch
    if _watch is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    _watch = _Watch()
    try:
        yield
    finally:
        end_watch()


def end_watch() -> None:
    """Restore the signal handlers; a child that was forked meanwhile has none."""
    global _watch
    if _watch is not None:
        _watch.close()
        _watch = None


def saves_from_now_on(how_to_go_on: Callable[[], str]) -> None:
    """Let signals wait for the end of an update from now on.

    how_to_go_on: returns the advice after a second signal, which ends the run at once.
    """
    if _watch is not None:
        _watch.how_to_go_on = how_to_go_on


def received() -> signal.Signals | None:
    """Return the first of our signals that this process got, or None."""
    return None if _watch is None else _watch.received


def encode_signal(number: signal.Signals | None, world_size: int) -> float:
    """Encode this rank's signal, if any; `decode_signal` decodes the ranks' sum."""
    return 0.0 if number is None else float((world_size + 1) ** SIGNALS.index(number))


def decode_signal(votes: float, world_size: int) -> signal.Signals | None:
    """Return the first of our signals that any rank got, or None."""
    base = world_size + 1
    for place, number in enumerate(SIGNALS):
        if round(votes) // base**place % base:
            return number
    return None


# ---- data loading workers ----


def _leave_to_parent() -> None:
    """Let only the parent end a forked child, such as a data loading worker.

    A terminal, `timeout`, torchrun and SLURM send signals to all processes of a run, also to
    workers, which the parent needs until it has saved.
    """
    global _watch
    if _watch is not None:
        _watch = None
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=_obey_parent, daemon=True).start()


def _obey_parent() -> None:
    info = signal.sigwaitinfo(SIGNALS)
    while (info.si_signo, info.si_pid) != (signal.SIGTERM, os.getppid()):
        info = signal.sigwaitinfo(SIGNALS)
    os._exit(0)


os.register_at_fork(after_in_child=_leave_to_parent)


class DataloaderWorkers:
    """The worker processes and the thread that load an epoch's batches.

    They must be ended after the epoch. fairseq's iterator refers to itself, and so keeps its
    workers. Python may crash if it ends while the thread runs.
    """

    iterator: Any = None  # fairseq's, over epochs

    def end(self) -> None:
        """End the workers of the current epoch; its number of batches stays known."""
        # fairseq has two kinds of iterators.
        for name in ("_cur_epoch_itr", "_current_epoch_iterator"):
            counting: Any = getattr(self.iterator, name, None)
            if hasattr(counting, "_itr"):
                _end_thread(counting._itr)
                counting._itr = iter(())
        self.iterator = None


def _end_thread(batches: Any) -> None:
    """End fairseq's thread that buffers batches, after the batch that it is loading."""
    thread = getattr(batches, "_consumer", None)
    deadline = time.monotonic() + 10
    while thread is not None and thread.is_alive() and time.monotonic() < deadline:
        thread._max_len = 0
        with suppress(queue.Empty):
            batches._queue.get(timeout=0.05)


# ---- fairseq's training command ----


@contextmanager
def as_command(main: Callable[..., Any]) -> Iterator[None]:
    """Handle the signals of a training command inside this context, from its start."""
    with watched() if is_training(main) else nullcontext():
        try:
            yield
        except ProcessExitedException as error:
            number = received()
            code = error.exit_code if number is None else exit_code(number)
            if code in map(exit_code, SIGNALS):
                raise SystemExit(code) from None  # the spawned process has printed it
            raise


def main_of_spawned(main: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Run a command's main function in a process that fairseq spawned.

    It handles the signals, too.
    """
    with watched():
        main(*args, **kwargs)


def is_training(main: Callable[..., Any]) -> bool:
    """Return whether this is the main function of fairseq's training command."""
    return "validate_and_save" in getattr(main, "__globals__", {})


def is_training_command() -> bool:
    """Return whether fairseq's training command runs in this process."""
    return _validate_and_save is not None


def early_stopping() -> dict[str, Any]:
    """Return the attributes of the training command's function for `--patience`."""
    function = getattr(_validate_and_save, "__globals__", {}).get("should_stop_early")
    attributes: dict[str, Any] = getattr(function, "__dict__", {})
    return attributes


def saving_on_signals(original: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap the training command's `train`, an epoch: signals wait for an update's end.

    A validation that a signal ended in the run before comes first.
    """

    @functools.wraps(original)
    def train(cfg: Any, trainer: Any, task: Any, epoch_itr: Any) -> Result:
        with watched():  # fairseq-hydra-train imports plugins too late for `as_command`
            saves_from_now_on(
                functools.partial(_how_to_go_on_now, cfg.checkpoint, trainer.checkpoint_suffix)
            )
            try:
                if trainer.ended_validation is not None:
                    result = _validate_again(cfg, trainer, task, epoch_itr)
                    if result[1]:
                        return result
                return original(cfg, trainer, task, epoch_itr)
            finally:
                trainer.end_loading()

    return train


def after_updates(original: Callable[..., Result]) -> Callable[..., Result]:
    """Wrap the training command's `validate_and_save`: skip it after a skipped update."""
    global _validate_and_save
    _validate_and_save = original

    @functools.wraps(original)
    def validate_and_save(
        cfg: Any,
        trainer: Any,
        task: Any,
        epoch_itr: Any,
        valid_subsets: list[str],
        end_of_epoch: bool,
    ) -> Result:
        number = trainer.stopped_by
        trainer.is_at_end = _is_at_end(cfg.optimization, trainer, epoch_itr, end_of_epoch)
        result: Result = [None], False
        try:
            if end_of_epoch or not trainer.left_out:
                result = original(cfg, trainer, task, epoch_itr, valid_subsets, end_of_epoch)
        except Stopped:
            number = trainer.stopped_by
            trainer.ended_validation = {"at_end_of_epoch": end_of_epoch}
        if trainer.is_at_end or result[1]:
            training_task(task).ended()
            if trainer.is_data_parallel_master:
                _say_best(cfg, trainer, task)
        elif number is not None:
            _save_and_end(cfg.checkpoint, trainer, epoch_itr, number)
        return result

    return validate_and_save


def _validate_again(cfg: Any, trainer: Any, task: Any, epoch_itr: Any) -> Result:
    """Make the validation that a signal ended, and save, as at its place in the epoch.

    `epoch_itr` has gone to the saved position, after the epoch's end to the next epoch.
    """
    ended = trainer.ended_validation
    trainer.ended_validation = None
    at_end = ended["at_end_of_epoch"]
    then = SimpleNamespace(
        epoch=epoch_itr.epoch - at_end,
        next_epoch_idx=epoch_itr.epoch,
        end_of_epoch=lambda: at_end,
        state_dict=lambda: ended["position"],
    )
    validate_and_save = getattr(_validate_and_save, "__globals__", {})["validate_and_save"]
    subsets = cfg.dataset.valid_subset.split(",")
    result: Result = validate_and_save(cfg, trainer, task, then, subsets, at_end)
    if at_end and not result[1]:
        trainer.lr_step(then.epoch, result[0][0])
    return result


def _is_at_end(options: Any, trainer: Any, epoch_itr: Any, end_of_epoch: bool) -> bool:
    """Return whether the run makes no further update, by fairseq's rules.

    A resumed run would not validate.
    """
    if end_of_epoch and epoch_itr.next_epoch_idx > (options.max_epoch or math.inf):
        return True
    hours = trainer.cumulative_training_time() / 3600
    is_late = 0 < options.stop_time_hours < hours
    is_done = trainer.get_num_updates() >= (options.max_update or math.inf)
    return bool(is_late or is_done)


def _say_best(cfg: Any, trainer: Any, task: Any) -> None:
    """Print the best checkpoint, its score, and how to evaluate it."""
    best = getattr(checkpoint_utils.save_checkpoint, "best", None)
    path = f"{cfg.checkpoint.save_dir}/checkpoint_best{trainer.checkpoint_suffix}.pt"
    if best is None or not PathManager.exists(path):
        return
    metric = cfg.checkpoint.best_checkpoint_metric
    said = f"The run has ended after update {trainer.get_num_updates()}; its best checkpoint is "
    said += f"`{path}`, with {screen.SHOWN.get(metric, metric)} {best:.3f}."
    if hasattr(task, "task_names"):
        said += f" Next: `mtmoe evaluate {shlex.quote(cfg.task.data)} --path {shlex.quote(path)}`."
    print(said, file=sys.stderr, flush=True)


def _save_and_end(cfg: Any, trainer: Any, epoch_itr: Any, number: signal.Signals) -> NoReturn:
    checkpoint_utils.save_checkpoint(cfg, trainer, epoch_itr, None)
    if failures.several_processes():
        # A launcher may kill the other processes when one ends.
        dist.barrier(group=failures.between_hosts(make=False))
    if trainer.is_data_parallel_master:
        suffix = trainer.checkpoint_suffix
        done = f"{number.name} ended the run after update {trainer.get_num_updates()}"
        done = f"{done}; {_how_to_go_on(cfg, suffix)}."
        best = f"checkpoint_best{suffix}.pt"
        never = cfg.no_save or trainer.cfg.dataset.disable_validation
        if not never and not PathManager.exists(os.path.join(cfg.save_dir, best)):
            done += f" The first validation will write `{best}`."
        print(done, file=sys.stderr, flush=True)
    raise SystemExit(exit_code(number))


def _last_checkpoint(cfg: Any, suffix: str) -> str:
    return f"{cfg.save_dir}/checkpoint_last{suffix}.pt"


def _how_to_go_on_now(cfg: Any, suffix: str) -> str:
    """Return how a run goes on that may not have saved yet."""
    if PathManager.exists(_last_checkpoint(cfg, suffix)):
        return _how_to_go_on(cfg, suffix)
    return "it has saved no checkpoint yet, so the same command starts it again"


def _how_to_go_on(cfg: Any, suffix: str) -> str:
    for name in ("no_save", "no_last_checkpoints"):
        if getattr(cfg, name):
            return f"with `{flag(name)}` there is no checkpoint to continue from"
    once = [f"`{flag(name)}`" for name in _RESETS if getattr(cfg, name)]
    if cfg.restore_file != "checkpoint_last.pt":
        once.insert(0, "`--restore-file`")
    command = f"the same command without {', '.join(once)}" if once else "the same command"
    return f"{command} continues from `{_last_checkpoint(cfg, suffix)}`"
