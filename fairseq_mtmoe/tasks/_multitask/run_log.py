"""The part of a task that writes the run log: what a run is, figures from training, the results of each validation."""

from __future__ import annotations

import logging
import os
import platform
import time
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from fairseq_mtmoe.analysis.questions import unmoved
from fairseq_mtmoe.analysis.run_log import FILE_NAME, RunLog, provenance
from fairseq_mtmoe.protocols import MixesSources
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.slots.sparse_model import model_size
from fairseq_mtmoe.tasks._multitask import validation
from fairseq_mtmoe.tasks._multitask.validation import GateMovement, Group

PACKAGES = {"fairseq": ("fairseq-fixed", "fairseq"), "torch": ("torch",), "numpy": ("numpy",)}
SAME_NAME = (
    *("loss", "nll_loss", "lr", "gnorm", "wps", "ups", "wpb", "bsz", "clip"),
    *("loss_scale", "gb_free", "padding", "expert_comm_ms"),
)
FIGURES = {**{name: name for name in SAME_NAME}, "nonfinite_updates": "skipped"}  # fairseq's figures, and our names
TOTALS = ("skipped", "loss_scale", "gb_free")  # of these the last value counts, of others the mean
LINES = 1000  # a run's log has about so many lines of them for each e-fold of updates, however long the run is

logger = logging.getLogger(__name__)


def is_first_process() -> bool:
    """Whether this process is the one that writes and shows what all of them have."""
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


class TrainingRunLog:
    """The run log of one process; only the first of several processes writes."""

    def __init__(self, save_dir: str) -> None:
        self._log = RunLog(os.path.join(save_dir, FILE_NAME))
        self.has_begun = False  # whether this process has written the event `run`

    def write(self, event: str, **fields: Any) -> None:
        self.has_begun |= event == "run"
        if is_first_process():
            self._log.write(event, **fields)


class Stopwatch:
    """Time spent on training; validation and saving do not count. A resumed run goes on from its checkpoint's time."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._since: float | None = None

    def start(self) -> None:
        if self._since is None:
            self._since = time.monotonic()

    def stop(self) -> None:
        self.seconds = self.seconds

    @property
    def is_running(self) -> bool:
        return self._since is not None

    @property
    def seconds(self) -> float:
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    @seconds.setter
    def seconds(self, value: float) -> None:
        self._seconds, self._since = value, None


class TrainingRecord:
    """Figures of training between two lines of the run log, and the tokens of the whole run."""

    def __init__(self) -> None:
        self.tokens: int | None = 0  # of all processes' targets; None where a run's checkpoint does not say
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


def environment(device: torch.device) -> dict[str, Any]:
    """What made a run. Environment variables are left out: they hold secrets."""
    made, versions = provenance(), {"python": platform.python_version()}
    for name, packages in PACKAGES.items():
        for package in packages:
            with suppress(metadata.PackageNotFoundError):
                versions.setdefault(name, metadata.version(package))
    return {
        "versions": {"fairseq_mtmoe": made["version"], **versions},
        "commit": made["commit"],
        "command": made["command"],
        "folder": os.getcwd(),
        "hardware": _hardware(device),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _hardware(device: torch.device) -> str:
    """Such as `2 processes, CPU Intel(R) Xeon(R) with 2 cores`: the machine of the first process."""
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    processes = f"{world} process" + "es" * (world > 1)
    if device.type == "cuda":
        return f"{processes}, {torch.cuda.get_device_name(device)}"
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{processes}, CPU {next(names, platform.machine())} with {os.cpu_count()} cores"


class RunLogMixin(ABC):
    """A `RunObserver` (see `protocols`), whose tasks have names."""

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
        made = environment(self._device) if is_first_process() else {}
        about = {**self.about_the_run(), "data": self.args.data, "options": dict(self._options)}
        return {**about, **self._size, **made}

    def figures(self, meters: Mapping[str, Any], name: str | None) -> dict[str, float]:
        """A task's or a group's figures as they were logged, or, without a name, those of everything."""
        return validation.group_values(meters, "" if name is None else f"{name}_")

    def begins(self, options: Mapping[str, Any], device: torch.device, model: nn.Module) -> None:
        self._options, self._device, self._size = options, device, model_size(model)

    def trained(self, update: int, figures: Mapping[str, Any]) -> None:
        found = self.record.add(update, figures)
        if found is not None:
            self.run_log.write("train", update=update, **self._so_far(), **found)

    def sparsified(self, update: int, num_experts: int, model: nn.Module) -> None:
        self.run_log.write("sparsified", update=update, num_experts=num_experts, **model_size(model))

    def ended(self) -> None:
        found = unmoved(list(self.movement.latest))
        if found and is_first_process():
            reasons = "; ".join(f"{reason} in {', '.join(layers)}" for reason, layers in found.items())
            logger.warning(f"gates have hardly learned: {reasons} (--gate-lr-factor)")

    def expert_comm(self, update: int, updates: int, layers: Mapping[str, Mapping[str, float]]) -> None:
        self.run_log.write("expert_comm", update=update, updates=updates, layers=layers)

    def _so_far(self) -> dict[str, Any]:
        """What the run has spent: minutes of training, and tokens that it was trained on."""
        return {"minutes": self.stopwatch.seconds / 60, "tokens": self.record.tokens}

    def watch_validation(self, model: nn.Module) -> None:
        """From now on, and from zero, count experts' tokens, note sources' weights and compare gates."""
        validation.start_counting(model)
        self.movement.watch(model)

    def post_validate(self, model: Any, stats: dict[str, Any], meters: Mapping[str, Any]) -> None:
        """Called by fairseq after each subset; writes to the run log, and into `stats` what TensorBoard is to have."""
        place = {"epoch": self._epoch, "update": stats["num_updates"], "subset": self._evaluated_split}
        tasks = [name for name in self.validated_tasks if f"{name}_loss" in meters]
        names = [group.name for group in self.groups()] if tasks else []
        groups = [name for name in names if name in meters or f"{name}_loss" in meters]
        figures = {
            key: {name: self.figures(meters, name) for name in of_key}
            for key, of_key in ((self.tasks_event_key, tasks), (self.groups_event_key, groups))
        }
        self.run_log.write("valid", **place, **self._so_far(), **figures, all=self.figures(meters, None))
        if layers := validation.expert_counts(model):
            self.run_log.write("experts", **place, task_names=self.task_names, layers=layers)
            stats.update(validation.expert_figures(layers, self.task_names))
        if gates := self.movement.figures(model):
            self.run_log.write("gates", **place, since=self.movement.since, layers=gates)
        inner, weights = unwrapped(model), validation.mixture_weights(model)
        if weights and isinstance(inner, MixesSources):
            event, of_weights = inner.gates_event
            self.run_log.write(event, **place, **of_weights, layers=weights)
        self.watch_validation(model)
