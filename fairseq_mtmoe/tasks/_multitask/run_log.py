"""The run log that a training run writes, its stopwatch, and the counts of which tokens went to which experts."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from fairseq_mtmoe.analysis.routing import entropies, used_experts
from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog
from fairseq_mtmoe.moe import MixtureWeights
from fairseq_mtmoe.slots import adapter_blocks, expert_layers


class Stopwatch:
    """Time spent on training; validation and saving do not count. A resumed run goes on from its checkpoint's time."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since: float | None = None

    def start(self) -> None:
        """Go on, if it stands still."""
        if self._since is None:
            self._since = time.monotonic()

    def stop(self) -> None:
        """Stand still, if it goes."""
        self._seconds, self._since = self.seconds, None

    @property
    def is_running(self) -> bool:
        """Whether time counts now."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """Time that has counted so far."""
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._seconds, self._since = value, None


class TrainingRunLog:
    """The run log of one process; only the first of several processes writes."""

    def __init__(self, save_dir: str) -> None:
        self._log = RunLog(os.path.join(save_dir, FILE_NAME))
        self.has_begun = False

    def begin(self, **fields: Any) -> None:
        """Write the event `run` once in a process."""
        if not self.has_begun:
            self.has_begun = True
            self.write("run", **fields)

    def write(self, event: str, **fields: Any) -> None:
        """Write one event."""
        if is_first_process():
            self._log.write(event, **fields)


def is_first_process() -> bool:
    """Whether this process is the one that writes and shows what all of them have."""
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def start_counting(model: nn.Module) -> None:
    """From now on, and from zero, count which expert gets how many tokens of each task."""
    for layer in expert_layers(model).values():
        layer.load.reset()
        layer.load.enabled = True


def stop_counting(model: nn.Module) -> dict[str, list[list[int]]]:
    """The counts of all processes together: per layer, per task, per expert."""
    counts = {}
    for path, layer in expert_layers(model).items():
        layer.load.enabled = False
        total = layer.load.counts.to(next(layer.parameters()).device, copy=True)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
        counts[path] = total.tolist()
    return counts


def start_noting(model: nn.Module) -> None:
    """From now on, and from zero, note the weights that gates give sources."""
    for seen in _mixtures(model).values():
        seen.reset()
        seen.enabled = True


def stop_noting(model: nn.Module) -> dict[str, list[float]]:
    """By layer, the mean weight of each source, over the sentences of all processes since `start_noting`."""
    weights = {}
    for path, seen in _mixtures(model).items():
        seen.enabled = False
        if torch.distributed.is_initialized():
            seen.sums = seen.sums.to(next(model.parameters()).device)
            torch.distributed.all_reduce(seen.sums)
        weights[path] = seen.mean().tolist()
    return weights


@contextmanager
def uncounted(model: nn.Module, *more: Any) -> Iterator[None]:
    """Inside, nothing is counted or noted of what goes through a model, nor by further records that are `enabled`."""
    records: list[Any] = [*(layer.load for layer in expert_layers(model).values()), *_mixtures(model).values(), *more]
    were_enabled = [record.enabled for record in records]
    try:
        for record in records:
            record.enabled = False
        yield
    finally:
        for record, was_enabled in zip(records, were_enabled, strict=True):
            record.enabled = was_enabled


def _mixtures(model: nn.Module) -> dict[str, MixtureWeights]:
    """What blocks with a gate over sources noted of it, by their dotted paths."""
    blocks = adapter_blocks(model)
    return {path: block.mixture.seen for path, block in blocks.items() if block.mixture.seen is not None}


def expert_figures(layers: Mapping[str, Sequence[Sequence[int]]], task_names: Sequence[str]) -> dict[str, float]:
    """Named as TensorBoard groups them: `expert_entropy/LAYER`, `expert_entropy/TASK`, `experts_used/LAYER`.

    Entropies are in shares of the most that they can be: 1 where tokens are spread evenly over the experts, 0 where all
    of them are with one. A layer's is the mean over tasks, a task's the mean over layers.

    Args:
        layers: of each layer, (tasks, experts) tokens; a layer that is not told tasks has a single row.
        task_names: of the rows.
    """
    found: dict[str, float] = {}
    by_task: dict[str, list[float]] = {}
    for path, rows in layers.items():
        counts_TN = np.asarray(rows, dtype=np.float64)
        entropy_T = entropies(counts_TN)
        if not np.isfinite(entropy_T).any():
            continue
        found[f"expert_entropy/{path}"] = float(np.nanmean(entropy_T))
        found[f"experts_used/{path}"] = float(used_experts(counts_TN).mean())
        if len(entropy_T) == len(task_names):
            for name, entropy in zip(task_names, entropy_T.tolist(), strict=True):
                by_task.setdefault(name, []).append(entropy)
    means = {name: np.array(values) for name, values in by_task.items()}
    found |= {f"expert_entropy/{name}": float(np.nanmean(of)) for name, of in means.items() if np.isfinite(of).any()}
    return {name: round(value, 4) for name, value in found.items()}
