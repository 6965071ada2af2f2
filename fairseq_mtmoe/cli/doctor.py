"""`mtmoe doctor`: checks of this machine; a failed import's line shows its error."""

import importlib
import logging
import os
import platform
import shutil
import sys
import warnings
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from fairseq_mtmoe import __version__
from fairseq_mtmoe.cli._shared import cores, show
from fairseq_mtmoe.core.errors import first_line

GIB = 2**30
INSTALL = "`make install` in a clone, or see docs/start/install.md"


class Lacking(Exception):
    """Something optional is missing; the message is one line of advice."""


@click.command("doctor")
def command() -> None:
    """Check that this machine has what runs need: packages, GPUs, kernels, memory.

    Prints advice for each missing part. Exits with 1 if a required part is missing.
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    is_usable = True
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, look in CHECKS.items():
            mark = "[green]✓[/]"
            try:
                text = look()
            except (Exception, SystemExit) as error:
                mark = "[yellow]–[/]"
                text = first_line(error)
                if not isinstance(error, Lacking):
                    text = f"{type(error).__name__}: {text}"
                if name in ADVICE:
                    mark = "[red]✗[/]"
                    text += f"\n{ADVICE[name]}"
                    is_usable = False
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
    names = ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    nccl = "without NCCL: processes communicate by gloo"
    if distributed.is_nccl_available():
        nccl = "with NCCL"
    return f"{names}; torch is built for CUDA {torch.version.cuda}, {nccl}"


def _fairseq() -> str:
    import fairseq

    for module in ("data.data_utils_fast", "data.token_block_utils_fast"):
        importlib.import_module(f"fairseq.{module}")
    return f"{fairseq.__version__}, {Path(fairseq.__file__).parent}"


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
    _, _, group = membership.read_text().partition("0::/")
    folder = root / group.partition("\n")[0]
    limits = []
    while folder.is_relative_to(root):
        file = folder / "memory.max"
        if file.exists() and file.read_text() != "max\n":
            limits.append(int(file.read_text()))
        folder = folder.parent
    return limits


def _disk() -> str:
    shared = Path("/dev/shm")
    text = f"{shutil.disk_usage('.').free / GIB:.0f} GiB free in {Path.cwd()}"
    if shared.exists():
        text += f", {shutil.disk_usage(shared).free / GIB:.0f} GiB in {shared}"
    return text


def _indexes() -> str:
    try:
        import mtdata
        import sacrebleu
    except ModuleNotFoundError as error:
        raise Lacking(
            f"data sets by name need {error.name}: `pip install 'fairseq_mtmoe[corpora]'`"
        ) from error
    return f"mtdata {mtdata.__version__}, sacreBLEU {sacrebleu.__version__}"


CHECKS = {
    "torch": _torch,
    "GPUs": _gpus,
    "fairseq": _fairseq,
    "fairseq_mtmoe": _plugin,
    "compiled kernels": _kernels,
    "indexes of corpora": _indexes,
    "processor": _processor,
    "memory": _memory,
    "disk": _disk,
}
# How to get what runs cannot do without.
ADVICE = {
    "torch": "`pip install torch`, or the machine's own module or environment",
    "fairseq": INSTALL,
    "fairseq_mtmoe": INSTALL,
}
