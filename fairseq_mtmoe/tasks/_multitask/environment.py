"""The versions, commit, command and hardware of a run. Environment variables are left out: they hold secrets."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fairseq_mtmoe.analysis.run_log import provenance

PACKAGES = {"fairseq": ("fairseq-fixed", "fairseq"), "torch": ("torch",), "numpy": ("numpy",)}


def collect(device: torch.device) -> dict[str, Any]:
    """`versions`, `commit`, `command`, `folder`, `hardware` and `started` of the process that calls it."""
    made = provenance()
    versions = {"fairseq_mtmoe": made["version"], "python": platform.python_version()}
    found = {name: _version(names) for name, names in PACKAGES.items()}
    return {
        "versions": versions | {name: version for name, version in found.items() if version is not None},
        "commit": made["commit"],
        "command": made["command"],
        "folder": os.getcwd(),
        "hardware": hardware(device),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def hardware(device: torch.device) -> str:
    """Such as `2 processes, CPU Intel(R) Xeon(R) with 2 cores`: the machine of the first process."""
    world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    processes = f"{world} process" + "es" * (world > 1)
    if device.type == "cuda":
        return f"{processes}, {torch.cuda.get_device_name(device)}"
    return f"{processes}, CPU {_processor()} with {os.cpu_count()} cores"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
