"""The training part of the run log: environment, time, tokens and figures."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils

from fairseq_mtmoe.report.run_log import RunLog, provenance

PACKAGES = {"fairseq": ("fairseq-fixed", "fairseq"), "torch": ("torch",), "numpy": ("numpy",)}
SAME_NAME = (
    *("loss", "nll_loss", "lr", "gnorm", "wps", "ups", "wpb", "bsz", "clip"),
    *("loss_scale", "gb_free", "padding", "expert_comm_ms"),
)
# fairseq's names of figures, and ours.
FIGURES = {**dict(zip(SAME_NAME, SAME_NAME, strict=True)), "nonfinite_updates": "skipped"}
# These figures are logged by their last value, all others by their mean.
TOTALS = ("skipped", "loss_scale", "gb_free")
LINES = 1000  # events `train` per e-fold of updates, so that logs of long runs stay short


def is_first_process() -> bool:
    """Return whether this is rank 0, which writes and prints for all ranks."""
    return bool(distributed_utils.get_global_rank() == 0)


class TrainingRunLog(RunLog):
    """The run log of one rank; only rank 0 writes."""

    has_begun = False  # whether this process has written the event `run`

    def write(self, event: str, **fields: Any) -> None:
        """Write an event on rank 0."""
        self.has_begun |= event == "run"
        if is_first_process():
            super().write(event, **fields)


class Stopwatch:
    """Training time without validation and saving."""

    _seconds: float = 0.0
    _since: float | None = None

    def start(self) -> None:
        """Start the clock."""
        self._since = time.monotonic()

    def stop(self) -> None:
        """Stop the clock, and keep its time."""
        self.stop_at(self.seconds)

    @property
    def is_running(self) -> bool:
        """Whether the clock runs."""
        return self._since is not None

    @property
    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._seconds + (0.0 if self._since is None else time.monotonic() - self._since)

    def stop_at(self, seconds: float) -> None:
        """Stop the clock at this time."""
        self._seconds = seconds
        self._since = None


class TrainingRecord:
    """Training figures since the run log's last line, and the tokens of the whole run."""

    def __init__(self) -> None:
        # Target tokens of all ranks; None if the run's checkpoint lacks the number.
        self.tokens: int | None = 0
        self._written = 0
        self._since: dict[str, list[float]] = {}  # values by figure

    def add_tokens(self, logging_outputs: Sequence[Mapping[str, Any]]) -> None:
        """Add an update's tokens; `logging_outputs` are those of all ranks, as numbers."""
        if self.tokens is not None:
            self.tokens += sum(int(log.get("ntokens", 0)) for log in logging_outputs)

    def add(self, update: int, figures: Mapping[str, Any]) -> dict[str, float] | None:
        """Return the figures to write after an update, or None to average them later."""
        for name, ours in FIGURES.items():
            if _is_number(figures.get(name)):
                self._since.setdefault(ours, []).append(float(figures[name]))
        if update - self._written < update // LINES:
            return None
        means = {}
        for name, values in self._since.items():
            means[name] = values[-1] if name in TOTALS else fmean(values)
        self._written = update
        self._since = {}
        return means


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (torch.is_tensor(value) and value.numel() == 1)


def environment(device: torch.device) -> dict[str, Any]:
    """Return a run's versions, command, folder, hardware and start.

    Environment variables are left out, because they may hold secrets.
    """
    made = provenance()
    versions = {"python": platform.python_version()}
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
    """Return rank 0's hardware: `2 processes, CPU Intel(R) Xeon(R) with 2 cores`."""
    world = distributed_utils.get_global_world_size()
    processes = f"{world} process" + "es" * (world > 1)
    if device.type == "cuda":
        return f"{processes}, {torch.cuda.get_device_name(device)}"
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{processes}, CPU {next(names, platform.machine())} with {os.cpu_count()} cores"
