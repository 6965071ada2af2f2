"""`mtmoe doctor`: checks of this machine; a failed import's line shows its error."""

import importlib
import importlib.metadata
import logging
import os
import platform
import re
import shutil
import sys
import warnings
from contextlib import suppress
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from fairseq_mtmoe import __version__
from fairseq_mtmoe.cli._shared import cores, show
from fairseq_mtmoe.core.errors import first_line

GIB = 2**30
INSTALL = "`make install` in a clone, or see docs/start/install.md"
# A cluster may have its own torch, and jobs draw nothing.
LEFT_OUT = ("torch", "altair", "vl-convert-python")
EXTRAS = ("corpora", "cluster", "identify", "nlu", "serve")  # of setup.py, for users


class Lacking(Exception):
    """Something is missing or too old; the message is the advice."""


@click.command("doctor")
def command() -> None:
    """Check that this machine has what runs need: packages, GPUs, kernels, memory.

    Advises on missing parts. Exits with 1 if a required part is missing.
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    is_usable = True
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, look in CHECKS.items():
            try:
                text = look()
                mark = "[green]✓[/]"
            except (Exception, SystemExit) as error:
                mark = "[red]✗[/]" if name in NECESSARY else "[yellow]–[/]"
                is_usable = is_usable and name not in NECESSARY
                text = str(error)
                if not isinstance(error, Lacking):
                    text = (
                        f"{type(error).__name__}: "
                        f"{first_line(error)}\n{NECESSARY.get(name, 'the check failed')}"
                    )
            table.add_row(mark, name, escape(text))
    logging.disable(logging.NOTSET)
    show(table)
    if not is_usable:
        sys.exit(1)


def _torch() -> str:
    import torch

    return f"{torch.__version__}, {Path(str(torch.__file__)).parent}"


def _gpus() -> str:
    import torch
    from torch import distributed

    if not torch.cuda.is_available():
        if Path("/dev/nvidia0").exists():
            raise Lacking(
                "torch cannot use this machine's GPU: compare `nvidia-smi`'s CUDA version with "
                "torch's"
            )
        return "none that torch can use: runs use the CPU"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    nccl = "without NCCL: processes communicate by gloo"
    if distributed.is_nccl_available():
        nccl = "with NCCL"
    return f"{', '.join(names)}; torch is built for CUDA {torch.version.cuda}, {nccl}"


def _fairseq() -> str:
    import fairseq

    for module in ("data.data_utils_fast", "data.token_block_utils_fast"):
        importlib.import_module(f"fairseq.{module}")
    version = _version_of("fairseq-fixed") or fairseq.__version__
    return f"{version}, {Path(fairseq.__file__).parent}"


def _plugin() -> str:
    from fairseq_mtmoe import register

    register()
    return (
        f"{__version__}, {Path(__file__).parents[1]}; Python {platform.python_version()}, "
        f"{sys.executable}"
    )


def _kernels() -> str:
    from fairseq_mtmoe.moe.assignment import kernels

    if not kernels.BUILDS:
        raise Lacking(
            "none loads: balanced assignment takes ten times as long; `make install` builds them"
        )
    return f"uses {next(iter(kernels.BUILDS))} of {', '.join(kernels.BUILDS)}"


def _version_of(distribution: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return ""


def missing_packages(extra: str = "") -> list[str]:
    """Return missing packages of an extra of setup.py, or of the package itself."""
    names = []
    for line in importlib.metadata.requires("fairseq_mtmoe") or ():
        requirement, _, marker = line.partition(";")
        match = re.search(r"extra == ['\"](\w+)", marker)
        if (match[1] if match else "") == extra and "python_version" not in marker:
            names.append(re.split(r"[^\w.-]", requirement)[0])
    return [name for name in names if name not in LEFT_OUT and not _version_of(name)]


def _packages() -> str:
    if missing := missing_packages():
        raise Lacking(f"missing: `pip install {' '.join(missing)}`")
    return "all required ones"


def _optional_packages() -> str:
    missing = [extra for extra in EXTRAS if missing_packages(extra)]
    if missing:
        raise Lacking(
            f"incomplete: `pip install 'fairseq_mtmoe[{','.join(missing)}]'`, or "
            "WHEELHOUSE-optional"
        )
    return f"all of {', '.join(EXTRAS)}"


def _processor() -> str:
    threads = f"OMP_NUM_THREADS: {os.environ.get('OMP_NUM_THREADS', 'not set')}"
    return f"{cores()} of {os.cpu_count()} cores for this process; {threads}"


def _memory() -> str:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = min([total, *memory_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])
    return f"{total / GIB:.0f} GiB, of which this job may use {limit / GIB:.0f}"


def memory_limits(membership: Path, root: Path) -> list[int]:
    """Return this process's memory limits in bytes, as SLURM and containers set them.

    The limits are those of its cgroup (version 2).
    """
    line = next(
        (line for line in membership.read_text().splitlines() if line.startswith("0::/")), "0::/"
    )
    group = root / line.removeprefix("0::/")
    files = [
        folder / "memory.max" for folder in (group, *group.parents) if folder.is_relative_to(root)
    ]
    texts = [file.read_text().strip() for file in files if file.exists()]
    return [int(text) for text in texts if text != "max"]


def _disk() -> str:
    shared = Path("/dev/shm")
    memory = (
        f", {shutil.disk_usage(shared).free / GIB:.0f} GiB in /dev/shm" if shared.exists() else ""
    )
    return f"{shutil.disk_usage('.').free / GIB:.0f} GiB free in {Path.cwd()}{memory}"


CHECKS = {
    "torch": _torch,
    "GPUs": _gpus,
    "fairseq": _fairseq,
    "fairseq_mtmoe": _plugin,
    "compiled kernels": _kernels,
    "packages": _packages,
    "optional packages": _optional_packages,
    "processor": _processor,
    "memory": _memory,
    "disk": _disk,
}
# What runs cannot do without, with advice.
NECESSARY = {
    "torch": "`pip install torch`, or the machine's own module or environment",
    **dict.fromkeys(("fairseq", "fairseq_mtmoe", "packages"), INSTALL),
}
