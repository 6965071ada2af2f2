"""What an expert layer costs: time and memory of a forward and a backward pass, ours and others', in one run.

    python benchmarks/bench_layer.py --write
    python benchmarks/bench_layer.py --beside --no-peers --experts 8,32   # with a process that keeps a core busy

`--beside` sets `OMP_WAIT_POLICY=PASSIVE`, unless the environment has another policy.
Before anything is timed, our layers' outputs and gradients are compared with `moe/reference.py`, and the bound's with
plain products. All systems take the same batches in turn. On a GPU `make gpu-check` times our layers.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler says when it starts and stops

import click
import torch
from layer_checks import check_bound, check_in_place, check_small
from layer_costs import peak_memory
from layer_systems import BOUNDS, DENSE, GATES, SKEWED, Sizes, System, own_systems, peer_systems
from measure import Report, report_name, report_options
from timing import Floor, Ratio, interleaved

from fairseq_mtmoe.moe import MoELayer

FULL, SMALL = Sizes(4096, 512, 2048), Sizes(4096, 256, 1024)
BATCHES = 4
DENSE_FLOOR_UP_TO = 64  # experts: with more of them, the bound itself is far from the dense layer
DENSE_FLOOR = Floor(1.10)
# With another busy process: of up to 8 experts, and of more.
BESIDE_FLOORS = (Floor(1.25), Floor(1.5))
FEW_EXPERTS = 8
PEERS_UP_TO = 64  # experts: with more, some peers take minutes
COLUMNS = ("system", "ms", "time / dense", "time / bound", "time / dense, per active FLOP", "memory / dense")
NOTE = (
    "Medians and quartiles of forward and backward passes, with gradients of input, gate and weights. "
    "The bound is the faster layout of the bare products. Memory is the pass's peak, weights and "
    "their gradients aside."
)


@click.command(context_settings={"show_default": True})
@click.option("--experts", metavar="N,…", help="Numbers of experts. [default: 8,32,128]")
@click.option("--repetitions", type=click.IntRange(5), default=9)
@click.option("--peers/--no-peers", default=True, help="Time the layers of others too.")
@click.option("--beside", is_flag=True, help="Keep one core busy with another process.")
@report_options("Small sizes, 8 and 32 experts, and with `--check` no peers.")
def main(
    experts: str | None,
    repetitions: int,
    peers: bool,
    beside: bool,
    small: bool,
    check: bool,
    write: bool,
) -> None:
    """Time one expert layer of each kind, and print tables with ratios."""
    if beside and "OMP_WAIT_POLICY" not in os.environ:  # OpenMP reads it once, when torch is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"})
    torch.manual_seed(1)
    small = small or check
    peers = peers and not check  # the best of them is as fast as the dense layer: their floor is out of reach
    sizes = SMALL if small else FULL
    name = "layer_beside" if beside else "layer"
    report = Report(report_name(name, small), "One expert layer, forward and backward")
    report.text(f"{sizes.tokens} tokens, H={sizes.hidden}, F={sizes.inner}, {str(sizes.dtype).removeprefix('torch.')}.")
    with busy_core() if beside else nullcontext():
        for number in (experts or ("8,32" if small else "8,32,128")).split(","):
            has_peers = peers and int(number) <= PEERS_UP_TO
            one_number(report, int(number), sizes, repetitions, has_peers, beside)
            gc.collect()
    report.finish(write, check)


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep the last core busy with a process that counts."""
    core = max(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield
        finally:
            process.kill()


def dense_floor(num_experts: int, beside: bool) -> Floor:
    """Return the floor of a layer's time over the dense layer's."""
    if not beside:
        return DENSE_FLOOR
    return BESIDE_FLOORS[num_experts > FEW_EXPERTS]


@dataclass(frozen=True)
class Measured:
    """The systems of one number of experts, and what was found of each: seconds, bytes."""

    num_experts: int
    sizes: Sizes
    systems: dict[str, System]
    seconds: dict[str, list[float]]
    memory: dict[str, int]

    @classmethod
    def of(cls, num_experts: int, sizes: Sizes, systems: dict[str, System], repetitions: int) -> Measured:
        works = {name: system.step for name, system in systems.items()}
        prepare = {name: system.prepare for name, system in systems.items()}
        seconds = interleaved(works, repetitions, 2, prepare=prepare)
        memory = {name: peak_memory(system) for name, system in systems.items()}
        return cls(num_experts, sizes, systems, seconds, memory)

    @property
    def bound(self) -> str:
        return min(BOUNDS, key=lambda name: median(self.seconds[name]))

    @property
    def best_peer(self) -> str | None:
        """The peer that takes least time per active FLOP, if there are any."""
        peers = [name for name in self.systems if name not in (DENSE, *BOUNDS, *GATES)]
        return min(peers, key=lambda name: median(self.per_expert(name)), default=None)

    def per_expert(self, name: str) -> list[float]:
        """Seconds over the number of experts that each token is meant to have."""
        return [value / self.systems[name].experts_per_token for value in self.seconds[name]]

    def rows(self) -> list[list[object]]:
        return [self._row(name) for name in self.systems]

    def _row(self, name: str) -> list[object]:
        dense, bound = (Ratio.of(self.seconds[name], self.seconds[peer]) for peer in (DENSE, self.bound))
        per_flop = dense.median / self.systems[name].experts_per_token
        memory = self.memory[name] / self.memory[DENSE]
        return [name, 1000 * median(self.seconds[name]), dense, bound, per_flop, memory]


def one_number(
    report: Report, num_experts: int, sizes: Sizes, repetitions: int, peers: bool, beside: bool
) -> None:
    inputs = sizes.inputs(BATCHES)
    systems = own_systems(num_experts, sizes, inputs)
    for name in GATES:
        check_small(name, num_experts, replace(sizes, tokens=4 * num_experts + 3, hidden=24, inner=40))
        check_in_place(systems[name])
    for name in BOUNDS:
        check_bound(systems[name], num_experts)
    if peers:
        systems |= peer_systems(num_experts, sizes, inputs)
    found = Measured.of(num_experts, sizes, systems, repetitions)
    report.raw(f"seconds, {num_experts} experts", found.seconds)
    report.table(f"{num_experts} experts", COLUMNS, found.rows(), f"{NOTE} {loads(systems)}")
    for name in GATES:
        add_figures(report, found, name, beside)


def add_figures(report: Report, found: Measured, name: str, beside: bool) -> None:
    """One of ours over the dense layer, the bound and the best peer; its memory."""
    label, seconds = f"{name}, {found.num_experts} experts", found.seconds[name]
    others = []
    if name != SKEWED:  # with an uneven load, neither the bound nor the dense layer does the same work
        others.append(("bound", found.seconds[found.bound], Floor(1.15)))
        if found.num_experts <= DENSE_FLOOR_UP_TO:
            others.insert(0, ("dense", found.seconds[DENSE], dense_floor(found.num_experts, beside)))
        if found.best_peer:
            others.append((f"{found.best_peer}, per active FLOP", found.per_expert(found.best_peer), Floor(0.5)))
    for what, theirs, floor in others:
        ratio = Ratio.of(seconds, theirs)
        report.figure(f"{label}: time / {what}", ratio.median, floor, (ratio.low, ratio.high))
    report.figure(f"{label}: memory / dense", found.memory[name] / found.memory[DENSE], Floor(1.5))


def loads(systems: dict[str, System]) -> str:
    return " ".join(load_in_words(name, systems[name]) for name in GATES)


def load_in_words(name: str, system: System) -> str:
    """The largest load over the mean one, and the experts without tokens."""
    layer = system.module
    assert isinstance(layer, MoELayer)
    layer.load.enabled = True
    with torch.no_grad():
        system.call(system.input_TH)
    layer.load.enabled = False
    load_N = layer.load.counts.sum(0).float()
    layer.load.reset()
    largest, idle = float(load_N.max() / load_N.mean()), int((load_N == 0).sum())
    return f"{name[0].upper()}{name[1:]}: largest load {largest:.2f} of the mean, {idle} experts without tokens."


if __name__ == "__main__":
    main()
