"""The part of a task that writes the run log: figures from training, and the results of each validation."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import nn

from fairseq_mtmoe.analysis.routing import unmoved
from fairseq_mtmoe.protocols import MixesSources
from fairseq_mtmoe.slots.model_size import model_size
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.tasks._multitask import environment
from fairseq_mtmoe.tasks._multitask.gate_movement import GateMovement
from fairseq_mtmoe.tasks._multitask.groups import Group, group_values
from fairseq_mtmoe.tasks._multitask.run_log import (
    Stopwatch,
    TrainingRunLog,
    expert_figures,
    is_first_process,
    start_counting,
    start_noting,
    stop_counting,
    stop_noting,
)

SAME_NAME = (
    *("loss", "nll_loss", "lr", "gnorm", "wps", "ups", "wpb", "bsz", "clip"),
    *("loss_scale", "gb_free", "padding", "expert_comm_ms"),
)
FIGURES = {**{name: name for name in SAME_NAME}, "nonfinite_updates": "skipped"}
"""The figures of fairseq's that are kept, and their names in the run log."""

TOTALS = ("skipped", "loss_scale", "gb_free")
"""Of these the last value counts, of others the mean."""

LINES = 1000
"""A run's log has about so many lines of them for each e-fold of updates, however long the run is."""


class TrainingRecord:
    """Figures of training between two lines of the run log, and the tokens of the whole run.

    Attributes:
        tokens: of the targets, in all processes, that updates were made from; None where the run goes on from a
            checkpoint that does not say.
    """

    def __init__(self) -> None:
        self.tokens: int | None = 0
        self._written = 0
        self._since: list[dict[str, float]] = []

    def add_tokens(self, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Count those of an update, of which all processes know the same `logging_outputs`, plain numbers."""
        if self.tokens is not None:
            self.tokens += sum(int(log.get("ntokens", 0)) for log in logging_outputs)

    def add(self, update: int, figures: Mapping[str, Any]) -> dict[str, float] | None:
        """The figures to write after an update; None where they wait for later ones, with which their mean is taken."""
        self._since.append({ours: float(figures[name]) for name, ours in FIGURES.items() if _is_number(figures, name)})
        if update - self._written < update // LINES:
            return None
        self._written, since, self._since = update, self._since, []
        known = dict.fromkeys(name for one in since for name in one)
        values = {name: [one[name] for one in since if name in one] for name in known}
        return {name: found[-1] if name in TOTALS else fmean(found) for name, found in values.items()}


def _is_number(figures: Mapping[str, Any], name: str) -> bool:
    value = figures.get(name)
    return isinstance(value, int | float) or (torch.is_tensor(value) and value.numel() == 1)


logger = logging.getLogger(__name__)


class RunLogMixin(ABC):
    """A `RunObserver` (see `protocols`), whose tasks have names.

    Attributes:
        movement: how far the gates are from their start.
        record: what training was told to fairseq's progress bars, and how many tokens there were.
        stopwatch: of training alone.
    """

    tasks_event_key = "tasks"  # under which the run log's event `valid` has each task's figures
    groups_event_key = "groups"  # and each group's
    args: Namespace
    task_names: list[str]
    _epoch: int
    _evaluated_split: str

    def start_run_log(self, save_dir: str) -> None:
        """To be called when the task is made; writes nothing yet."""
        self.run_log = TrainingRunLog(save_dir)
        self.stopwatch = Stopwatch()
        self.record = TrainingRecord()
        self.movement = GateMovement()
        self._options: Mapping[str, Any] = {}
        self._device = torch.device("cpu")
        self._size: Mapping[str, int] = {}

    @property
    @abstractmethod
    def validated_tasks(self) -> list[str]:
        """The tasks, by name, that a validation gives a figure for."""

    @abstractmethod
    def groups(self) -> list[Group]:
        """The sets of tasks that a validation gives an average for."""

    def about_the_run(self) -> dict[str, Any]:
        """What the run log is to say of the run, beside its sampling."""
        return {"task_names": self.task_names}

    def described_run(self) -> dict[str, Any]:
        """What the event `run` says beside the sampling."""
        made = environment.collect(self._device) if is_first_process() else {}
        about = {**self.about_the_run(), "data": self.args.data, "options": dict(self._options)}
        return {**about, **self._size, **made}

    def figures(self, meters: Mapping[str, Any], name: str | None) -> dict[str, float]:
        """A task's or a group's figures as they were logged, or, without a name, those of everything."""
        return group_values(meters, "" if name is None else f"{name}_")

    # ---- what training tells ----

    def begins(self, options: Mapping[str, Any], device: torch.device, model: nn.Module) -> None:
        """See `RunObserver`."""
        self._options, self._device, self._size = options, device, model_size(model)

    def trained(self, update: int, figures: Mapping[str, Any]) -> None:
        """See `RunObserver`."""
        found = self.record.add(update, figures)
        if found is not None:
            self.run_log.write("train", update=update, **self._so_far(), **found)

    def sparsified(self, update: int, num_experts: int, model: nn.Module) -> None:
        """See `RunObserver`."""
        self.run_log.write("sparsified", update=update, num_experts=num_experts, **model_size(model))

    def ended(self) -> None:
        """See `RunObserver`."""
        found = unmoved(list(self.movement.latest))
        if found and is_first_process():
            reasons = "; ".join(f"{reason} in {', '.join(layers)}" for reason, layers in found.items())
            logger.warning(f"gates have hardly learned: {reasons} (--gate-lr-factor)")

    def expert_comm(self, update: int, updates: int, layers: Mapping[str, Mapping[str, float]]) -> None:
        """See `RunObserver`."""
        self.run_log.write("expert_comm", update=update, updates=updates, layers=layers)

    def _so_far(self) -> dict[str, Any]:
        """What the run has spent: minutes of training, and tokens that it was trained on."""
        return {"minutes": self.stopwatch.seconds / 60, "tokens": self.record.tokens}

    # ---- what a validation leaves ----

    def post_validate(self, model: Any, stats: dict[str, Any], meters: Mapping[str, Any]) -> None:
        """Called by fairseq after the validation of each subset; writes it to the run log.

        What is added to `stats` fairseq hands on to its progress bars, and so to TensorBoard and others.
        """
        place = {"epoch": self._epoch, "update": stats["num_updates"], "subset": self._evaluated_split}
        tasks = [name for name in self.validated_tasks if f"{name}_loss" in meters]
        groups = (
            [group.name for group in self.groups() if group.name in meters or f"{group.name}_loss" in meters]
            if tasks
            else []
        )
        figures = {
            key: {name: self.figures(meters, name) for name in names}
            for key, names in ((self.tasks_event_key, tasks), (self.groups_event_key, groups))
        }
        self.run_log.write("valid", **place, **self._so_far(), **figures, all=self.figures(meters, None))
        layers = stop_counting(model)
        if layers:
            self.run_log.write("experts", **place, task_names=self.task_names, layers=layers)
            stats.update(expert_figures(layers, self.task_names))
        gates = self.movement.figures(model)
        if gates:
            self.run_log.write("gates", **place, since=self.movement.since, layers=gates)
        inner, weights = unwrapped(model), stop_noting(model)
        if weights and isinstance(inner, MixesSources):
            event, names = inner.gates_event
            self.run_log.write(event, **place, **names, layers=weights)
        start_counting(model)
        start_noting(model)
        self.movement.watch(model)
