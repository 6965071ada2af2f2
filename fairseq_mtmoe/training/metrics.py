"""Training figures: `--log-expert-comm`, and fixes of fairseq's own figures."""

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

from fairseq_mtmoe.core.protocols import training_task
from fairseq_mtmoe.moe import MoELayer
from fairseq_mtmoe.slots import ExpertSlot

logger = logging.getLogger(__name__)


def without_unknown(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Wrap the training command's `get_training_stats`: drop figures that are None."""

    @functools.wraps(original)
    def get_training_stats(stats: Mapping[str, Any]) -> dict[str, Any]:
        return original({name: value for name, value in stats.items() if value is not None})

    return get_training_stats


def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
    """Gather `data` of any size; a validation of many tasks exceeds fairseq's buffers."""
    gathered: list[Any] = [None] * dist.get_world_size(group)
    data = utils.move_to_cpu(data) if torch.cuda.is_available() else data
    dist.all_gather_object(gathered, data, group=group)
    return gathered


def summed(values: Sequence[Any], device: torch.device, group: Any) -> list[Tensor]:
    """Return sums of numbers and tensors over all ranks, in float64 on the device.

    They are sent in one message. fairseq's `all_reduce_dict` sends tensors and numbers apart, and
    synchronises a GPU.
    """
    numbers = [float(value) for value in values if not torch.is_tensor(value)]
    on_host = torch.tensor(numbers, dtype=torch.double, pin_memory=device.type == "cuda")
    moved = iter(on_host.to(device, non_blocking=True))
    parts: list[Tensor] = []
    for value in values:
        if torch.is_tensor(value):
            parts.append(value.to(device, torch.double))
        else:
            parts.append(next(moved))
    together = torch.cat([part.reshape(-1) for part in parts])
    distributed_utils.all_reduce(together, group=group)
    sums = together.split([part.numel() for part in parts])
    return [total.view_as(part) for total, part in zip(sums, parts, strict=True)]


def tell_figures(task: Any, updates: int, interval: int) -> None:
    """Pass the progress bars' figures to a run log, every `interval` updates."""
    meters = metrics.get_meters("train_inner")
    if updates % interval == 0 and meters is not None:
        training_task(task).trained(updates, meters.get_smoothed_values())


class ExpertCommLog:
    """Sums the all-to-all records of expert layers over updates, without validation.

    fairseq's metrics get each update's `expert_comm_ms` and `expert_comm_mb` over all layers, and
    `expert_comm_share`, the fraction of the update's wall time, with waiting for other ranks.

    Args:
        slots: the slots of blocks that have or will have experts, by dotted path.
    """

    def __init__(self, slots: Mapping[str, ExpertSlot], enabled: bool) -> None:
        self.enabled = enabled
        self._slots = slots
        self._updates = 0
        self._totals: dict[str, dict[str, float]] = {}

    @contextmanager
    def measured_update(self) -> Iterator[None]:
        """Record one update; it surrounds the update, inside fairseq's aggregation."""
        layers = self._layers()
        for layer in layers.values():
            layer.comm.reset()
            layer.comm.enabled = True
        begin = time.perf_counter()
        try:
            yield
        finally:
            for layer in layers.values():
                layer.comm.enabled = False
        if not layers:
            return
        records = {
            path: (layer.comm.seconds, layer.comm.num_bytes) for path, layer in layers.items()
        }
        # The records were read before: only then is a GPU's all-to-all over.
        wall = time.perf_counter() - begin
        seconds, num_bytes = (sum(numbers) for numbers in zip(*records.values(), strict=True))
        metrics.log_scalar("expert_comm_ms", seconds * 1000, priority=820, round=1)
        metrics.log_scalar("expert_comm_mb", num_bytes / 1e6, priority=821, round=3)
        metrics.log_scalar("expert_comm_share", seconds / wall, priority=822, round=3)
        self._updates += 1
        for path, (seconds, num_bytes) in records.items():
            total = self._totals.setdefault(path, {"seconds": 0.0, "bytes": 0})
            total["seconds"] += seconds
            total["bytes"] += num_bytes

    def _layers(self) -> dict[str, MoELayer]:
        """Return the sharded expert layers to log; turn the log off if there will be none."""
        if not self.enabled:
            return {}
        layers = {path: slot.moe for path, slot in self._slots.items() if slot.moe is not None}
        sharded = {
            path: layer for path, layer in layers.items() if layer.experts.placement.is_sharded
        }
        if not sharded and len(layers) == len(self._slots):
            logger.info(
                "`--log-expert-comm` logs nothing: no expert layer exchanges tokens with another "
                "process"
            )
            self.enabled = False
        return sharded

    def report(self, task: Any, update: int) -> None:
        """Pass the sums by layer since the last report to a task with a run log."""
        if self._updates:
            training_task(task).expert_comm(
                update=update, updates=self._updates, layers=self._totals
            )
        self._updates = 0
        self._totals = {}
