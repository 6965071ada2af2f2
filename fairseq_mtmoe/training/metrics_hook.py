"""The figures of a training: what fairseq's progress bars get for a task's run log, and `--log-expert-comm`.

fairseq computes its figures every `--log-interval` updates anyway. To take them from the progress bar costs an update
nothing, and on a GPU nothing is waited for that was not waited for before.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from fairseq import utils
from fairseq.logging import metrics
from fairseq.logging.progress_bar import BaseProgressBar
from torch import distributed as dist

from fairseq_mtmoe.moe import MoELayer
from fairseq_mtmoe.protocols import RunObserver
from fairseq_mtmoe.slots import ExpertSlot

logger = logging.getLogger(__name__)

TAG = "train_inner"  # of the figures of some updates, and not of an epoch

_observer: RunObserver | None = None  # of the run of this process


def follow(task: Any) -> None:
    """Called by our trainer: whose run log hears of figures from now on; none, where the task keeps no such log."""
    global _observer
    _observer = task if isinstance(task, RunObserver) else None


class TellingProgressBar(BaseProgressBar):
    """fairseq's bar of an epoch of training, which also tells the run's task what it is told itself."""

    def __init__(self, bar: Any, observer: RunObserver) -> None:
        self.wrapped_bar = bar
        self._observer = observer

    def __len__(self) -> int:
        return len(self.wrapped_bar)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.wrapped_bar)

    def log(self, stats: Mapping[str, Any], tag: str | None = None, step: int | None = None) -> None:
        """Called by fairseq every `--log-interval` updates."""
        if tag == TAG and step is not None:
            self._observer.trained(step, stats)
        self.wrapped_bar.log(stats, tag=tag, step=step)

    def print(self, stats: Mapping[str, Any], tag: str | None = None, step: int | None = None) -> None:
        """Called by fairseq at the end of an epoch."""
        self.wrapped_bar.print(stats, tag=tag, step=step)

    def update_config(self, config: Any) -> None:
        """Called by fairseq at an epoch's start."""
        self.wrapped_bar.update_config(config)


def telling(original: Callable[..., Any]) -> Callable[..., Any]:
    """fairseq's choice of a progress bar; one of training also tells the run log."""

    @functools.wraps(original)
    def make(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        bar = original(iterator, *args, **kwargs)
        is_training = kwargs.get("epoch") is not None and kwargs.get("prefix") is None
        return TellingProgressBar(bar, _observer) if is_training and _observer is not None else bar

    return make


def without_unknown(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The training command's `get_training_stats`: the figures of a line, without those that there are none of."""

    @functools.wraps(original)
    def get_training_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
        return original({name: value for name, value in stats.items() if value is not None})

    return get_training_stats


def of_any_size(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """fairseq's `all_gather_list`, for its trainer and `fairseq-validate`.

    What a validation tells of many tasks, or of every word of a batch, is more than fairseq's buffers take.
    """

    def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
        """As fairseq's: the data of all processes. `max_size` is no limit here."""
        gathered: list[Any] = [None] * dist.get_world_size(group)
        data = utils.move_to_cpu(data) if torch.cuda.is_available() else data
        dist.all_gather_object(gathered, data, group=group)
        return gathered

    return all_gather_list


class ExpertCommLog:
    """Sums up the expert layers' records over updates; validation does not count.

    fairseq's metrics get `expert_comm_ms` and `expert_comm_mb` of each update, all layers together, and
    `expert_comm_share`, of the update's wall time: this process's own, time in which it waits for others included.

    Args:
        slots: the blocks that have or will have experts, by dotted path.
        enabled: does nothing otherwise.
    """

    def __init__(self, slots: Mapping[str, ExpertSlot], enabled: bool) -> None:
        self.enabled = enabled
        self._slots = slots
        self._updates = 0
        self._totals: dict[str, dict[str, float]] = {}

    @contextmanager
    def update(self) -> Iterator[None]:
        """To be put around each update, inside of fairseq's aggregation of its metrics."""
        layers = self._layers() if self.enabled else {}
        for layer in layers.values():
            layer.comm.reset()
            layer.comm.enabled = True
        begin = time.perf_counter()
        try:
            yield
        finally:
            for layer in layers.values():
                layer.comm.enabled = False
        if layers:
            self._add(layers, begin)

    def _layers(self) -> dict[str, MoELayer]:
        """Those that exchange tokens; where there will never be any, the log says so and is off from now on."""
        layers = {path: slot.moe for path, slot in self._slots.items() if slot.moe is not None}
        exchanged = {path: layer for path, layer in layers.items() if layer.experts.placement.is_sharded}
        if not exchanged and len(layers) == len(self._slots):
            logger.info("`--log-expert-comm` logs nothing: no expert layer exchanges tokens with another process")
            self.enabled = False
        return exchanged

    def _add(self, layers: Mapping[str, MoELayer], begin: float) -> None:
        found = {path: (layer.comm.seconds, layer.comm.num_bytes) for path, layer in layers.items()}
        wall = time.perf_counter() - begin  # a GPU's exchanges are over only now
        seconds = sum(layer_seconds for layer_seconds, _ in found.values())
        megabytes = sum(num_bytes for _, num_bytes in found.values()) / 1e6
        metrics.log_scalar("expert_comm_ms", seconds * 1000, priority=820, round=1)
        metrics.log_scalar("expert_comm_mb", megabytes, priority=821, round=3)
        metrics.log_scalar("expert_comm_share", seconds / wall, priority=822, round=3)
        self._updates += 1
        for path, (layer_seconds, num_bytes) in found.items():
            total = self._totals.setdefault(path, {"seconds": 0.0, "bytes": 0})
            total["seconds"] += layer_seconds
            total["bytes"] += num_bytes

    def report(self, task: Any, update: int) -> None:
        """Tell a task that keeps a run log the sums per layer since the last report."""
        if self._updates and isinstance(task, RunObserver):
            task.expert_comm(update=update, updates=self._updates, layers=self._totals)
        self._updates, self._totals = 0, {}
