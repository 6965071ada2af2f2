"""The figures of a training: `--log-expert-comm`, and what fairseq's own figures lack."""

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from fairseq import utils
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import metrics
from torch import Tensor
from torch import distributed as dist

from fairseq_mtmoe.moe import MoELayer
from fairseq_mtmoe.protocols import RunObserver
from fairseq_mtmoe.slots import ExpertSlot

logger = logging.getLogger(__name__)


def without_unknown(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """The training command's `get_training_stats`, without the figures that are None."""

    @functools.wraps(original)
    def get_training_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
        return original({name: value for name, value in stats.items() if value is not None})

    return get_training_stats


def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
    """As fairseq's, of any size: its buffers do not take a validation of many tasks."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    data = utils.move_to_cpu(data) if torch.cuda.is_available() else data
    dist.all_gather_object(gathered, data, group=group)
    return gathered


def summed(values: Sequence[Any], device: torch.device, group: Any) -> list[Tensor]:
    """Return the sums over all processes of numbers and of tensors, shaped as they are, in float64 on the device.

    They are one message: fairseq's `all_reduce_dict` has one for tensors and one for numbers, and waits for a GPU.
    """
    numbers = [float(value) for value in values if not torch.is_tensor(value)]
    on_host = torch.tensor(numbers, dtype=torch.double, pin_memory=device.type == "cuda")
    moved = iter(on_host.to(device, non_blocking=True))
    parts = [value.to(device, torch.double) if torch.is_tensor(value) else next(moved) for value in values]
    together = torch.cat([part.reshape(-1) for part in parts])
    distributed_utils.all_reduce(together, group=group)
    sums = together.split([part.numel() for part in parts])
    return [one.view_as(part) for one, part in zip(sums, parts, strict=True)]


def tell_figures(task: Any, updates: int, interval: int) -> None:
    """Tell a task that keeps a run log what fairseq's progress bars get every `interval` updates."""
    meters = metrics.get_meters("train_inner")
    if updates % interval == 0 and meters is not None and isinstance(task, RunObserver):
        task.trained(updates, meters.get_smoothed_values())


class ExpertCommLog:
    """Sums up the expert layers' records over updates; validation does not count.

    fairseq's metrics get `expert_comm_ms` and `expert_comm_mb` of each update, all layers together, and
    `expert_comm_share`, of the update's wall time, waiting for others included.

    Args:
        slots: the blocks that have or will have experts, by dotted path.
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
        """Those that exchange tokens; where there will never be any, the log says so and is off."""
        layers = {path: slot.moe for path, slot in self._slots.items() if slot.moe is not None}
        exchanged = {path: layer for path, layer in layers.items() if layer.experts.placement.is_sharded}
        if not exchanged and len(layers) == len(self._slots):
            logger.info("`--log-expert-comm` logs nothing: no expert layer exchanges tokens with another process")
            self.enabled = False
        return exchanged

    def _add(self, layers: Mapping[str, MoELayer], begin: float) -> None:
        found = {path: {"seconds": layer.comm.seconds, "bytes": layer.comm.num_bytes} for path, layer in layers.items()}
        wall = time.perf_counter() - begin  # a GPU's exchanges are over only now
        seconds, num_bytes = (sum(record[name] for record in found.values()) for name in ("seconds", "bytes"))
        metrics.log_scalar("expert_comm_ms", seconds * 1000, priority=820, round=1)
        metrics.log_scalar("expert_comm_mb", num_bytes / 1e6, priority=821, round=3)
        metrics.log_scalar("expert_comm_share", seconds / wall, priority=822, round=3)
        self._updates += 1
        for path, record in found.items():
            total = self._totals.get(path, {"seconds": 0.0, "bytes": 0})
            self._totals[path] = {name: total[name] + value for name, value in record.items()}

    def report(self, task: Any, update: int) -> None:
        """Tell a task that keeps a run log the sums per layer since the last report."""
        if self._updates and isinstance(task, RunObserver):
            task.expert_comm(update=update, updates=self._updates, layers=self._totals)
        self._updates, self._totals = 0, {}
