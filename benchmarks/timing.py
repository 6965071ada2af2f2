"""What times are taken with, and what they are compared with: needs torch alone, on a CPU or a GPU.

All works are timed in turn, so that a change of the machine's mood meets each of them, and ratios are taken turn by
turn. On a GPU the clock is its own: CUDA events around the work.
"""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "numpy", "scipy", "fairseq-fixed", "fairscale", "transformers", "sentencepiece", "triton")
SETTINGS = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "THP_MEM_ALLOC_ENABLE")  # of the environment; they change timings
HEAD_START = 40_000_000  # cycles of a GPU, 20 ms of an H200: longer than the host needs to queue a layer's operations


def interleaved(
    works: Mapping[str, Callable[[], object]],
    repetitions: int = 7,
    warmups: int = 2,
    device: str = "cpu",
    prepare: Mapping[str, Callable[[], object]] | None = None,
    head_start: bool = False,
) -> dict[str, list[float]]:
    """Seconds of each work in each repetition, in the order of the repetitions.

    Args:
        works: what to time, by name. All run once per repetition; a repetition starts with another one each time.
        warmups: repetitions that come first and do not count.
        device: on "cuda…", seconds of the device's own clock, with synchronisation; else wall clock.
        prepare: what is done before a work of the same name, outside of its time.
        head_start: a GPU is kept busy until the host has queued the work, as it is in the midst of a model, so that its
            time is that of the work and not of the queueing.
    """
    names = list(works)
    prepare = prepare or {}
    found: dict[str, list[float]] = {name: [] for name in names}
    for repetition in range(-warmups, repetitions):
        first = repetition % len(names)
        for name in names[first:] + names[:first]:
            if name in prepare:
                prepare[name]()
            seconds = seconds_of(works[name], device, head_start)
            if repetition >= 0:
                found[name].append(seconds)
    return found


def seconds_of(work: Callable[[], object], device: str = "cpu", head_start: bool = False) -> float:
    if device.startswith("cuda"):
        return _seconds_on_gpu(work, head_start)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _seconds_on_gpu(work: Callable[[], object], head_start: bool) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    if head_start:
        torch.cuda._sleep(HEAD_START)
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000


@dataclass(frozen=True)
class Ratio:
    """The median and the quartiles of the turn-by-turn ratios of two systems' seconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, own: Sequence[float], peer: Sequence[float]) -> Ratio:
        """Own seconds over the peer's, both from one interleaved run (the same number, at least one)."""
        ratios = [ours / theirs for ours, theirs in zip(own, peer, strict=True)]
        # Python before 3.13 wants two values for quartiles.
        low, _, high = statistics.quantiles(ratios * 2 if len(ratios) == 1 else ratios, n=4, method="inclusive")
        return cls(statistics.median(ratios), low, high)

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}-{self.high:.3f})"


@dataclass(frozen=True)
class Floor:
    """What a figure has to reach: at most `limit`, or at least."""

    limit: float
    at_most: bool = True

    def met(self, value: float, slack: float = 0.0) -> bool:
        """Whether a value reaches it, or misses it by no more than this share of the limit. NaN does not."""
        if self.at_most:
            return value <= self.limit * (1 + slack)
        return value >= self.limit * (1 - slack)

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {shown(self.limit)}"


def shown(value: object) -> str:
    """A cell of a table: numbers with three digits that count, or all digits before the point."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"


def surroundings() -> dict[str, Any]:
    """What a number depends on: machine, threads, settings, versions, commit and command."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue  # not every benchmark needs every package
    return {
        "command": _command(),
        "commit": _commit(),
        "machine": _machine(),
        "threads": torch.get_num_threads(),
        "settings": {name: os.environ[name] for name in SETTINGS if name in os.environ},
        "load_before": round(os.getloadavg()[0], 2),  # processes that wanted a core in the minute before
        "versions": versions,
    }


def where_and_how(found: Mapping[str, Any]) -> str:
    """Return a paragraph of the surroundings."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    settings = "".join(f", {name}={value}" for name, value in found["settings"].items())
    return (
        f"`{found['command']}`, commit {found['commit']}.\n{found['machine']}; {found['threads']} threads of "
        f"torch{settings}; load {found['load_before']} in the minute before.\n{versions}."
    )


def processor() -> str:
    """Return the name of the processor."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


def _machine() -> str:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cards = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{processor()}, {count} cores, {torch.backends.cpu.get_cpu_capability()}{cards}, {platform.system()}"


def git(*words: str) -> str:
    """Return what git says of this repository; nothing where it is not installed."""
    try:
        found = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return found.stdout.strip()


def _commit() -> str:
    # Results are written one after the other: those before this one are no change of what is measured.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" with uncommitted changes" if changed else "")


def _command() -> str:
    script = Path(sys.argv[0]).resolve()
    shown_script = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script.name
    return shlex.join(["python", str(shown_script), *sys.argv[1:]])
