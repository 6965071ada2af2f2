"""What an expert layer costs: time and memory of a forward and a backward pass, ours and others', in one run.

    python benchmarks/bench_layer.py --write
    OMP_WAIT_POLICY=PASSIVE python benchmarks/bench_layer.py --beside --write    # beside a busy process

Before anything is timed, our layers' outputs are compared token by token, and the bound's with plain products.
All systems take the same batches in turn. On a GPU `make gpu-check` times our layers.
"""

from __future__ import annotations

import atexit
import gc
import os
import subprocess
import sys
from statistics import median

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler says when it starts and stops

import click
import torch
from layer_systems import (
    BOUNDS,
    DENSE,
    GATES,
    Sizes,
    check_bound,
    check_in_place,
    own_systems,
    peak_memory,
    peer_systems,
)
from measure import Report, benchmark
from timing import Floor, Ratio, interleaved

FULL, SMALL = Sizes(4096, 512, 2048), Sizes(4096, 256, 1024)
BATCHES = 4
MANY_EXPERTS = 64  # with more of them, the bound itself is far from the dense layer, and some peers take minutes
DENSE_FLOOR = Floor(1.10)
BESIDE_FLOORS = {8: Floor(1.25), 32: Floor(1.5)}  # by the number of experts, while another process keeps a core busy
COLUMNS = ("system", "ms", "time / dense", "time / bound", "time / dense, per active FLOP", "memory / dense")
NOTE = (
    "Medians and quartiles of forward and backward passes, with gradients of input, gate and weights. "
    "The bound is the faster layout of the bare products. Memory is the pass's peak, weights and "
    "their gradients aside."
)


@benchmark(
    "layer", "One expert layer, forward and backward", "Small sizes, 8 and 32 experts, no peers, whose floor is far."
)
@click.option("--beside", is_flag=True, help="Keep one core busy with another process, without peers.")
def main(report: Report, small: bool, repetitions: int, beside: bool) -> None:
    """Time one expert layer of each kind, and print tables with ratios."""
    torch.manual_seed(1)
    sizes = SMALL if small else FULL
    report.text(f"{sizes.tokens} tokens, H={sizes.hidden}, F={sizes.inner}, {str(sizes.dtype).removeprefix('torch.')}.")
    if beside:
        report.name = report.name.replace("layer", "layer_beside")
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        atexit.register(busy.kill)
        os.sched_setaffinity(busy.pid, {max(os.sched_getaffinity(0))})
    for num_experts in (8, 32) if small or beside else (8, 32, 128):
        dense_floor = BESIDE_FLOORS[num_experts] if beside else DENSE_FLOOR
        has_peers = not small and not beside and num_experts <= MANY_EXPERTS
        compare(report, num_experts, sizes, repetitions, has_peers, dense_floor)
        gc.collect()


def compare(
    report: Report, num_experts: int, sizes: Sizes, repetitions: int, has_peers: bool, dense_floor: Floor
) -> None:
    """Check our layers of so many experts, time all systems, and add their table and figures."""
    inputs = sizes.inputs(BATCHES)
    systems = own_systems(num_experts, sizes, inputs)
    for name in GATES:
        check_in_place(systems[name])
    for name in BOUNDS:
        check_bound(systems[name], num_experts)
    peers = peer_systems(num_experts, sizes, inputs) if has_peers else {}
    systems |= peers
    works = {name: system.step for name, system in systems.items()}
    prepare = {name: system.prepare for name, system in systems.items()}
    seconds = interleaved(works, repetitions, 2, prepare=prepare)
    memory = {name: peak_memory(system) for name, system in systems.items()}
    bound = min(BOUNDS, key=lambda name: median(seconds[name]))
    rows = []
    for name, system in systems.items():
        over_dense, over_bound = (Ratio.of(seconds[name], seconds[other]) for other in (DENSE, bound))
        per_flop = over_dense.median / system.experts_per_token
        row = [name, 1000 * median(seconds[name]), over_dense, over_bound, per_flop, memory[name] / memory[DENSE]]
        rows.append(row)
    report.raw(f"seconds, {num_experts} experts", seconds)
    report.table(f"{num_experts} experts", COLUMNS, rows, NOTE)
    others = [("bound", seconds[bound], Floor(1.15))]
    if num_experts <= MANY_EXPERTS:
        others.insert(0, ("dense", seconds[DENSE], dense_floor))
    if peers:
        per_expert = {name: [value / peer.experts_per_token for value in seconds[name]] for name, peer in peers.items()}
        best = min(per_expert, key=lambda name: median(per_expert[name]))
        others.append((f"{best}, per active FLOP", per_expert[best], Floor(0.5)))
    for name in GATES:
        label = f"{name}, {num_experts} experts"
        for what, theirs, floor in others:
            report.ratio(f"{label}: time / {what}", seconds[name], theirs, floor)
        report.figure(f"{label}: memory / dense", memory[name] / memory[DENSE], Floor(1.5))


if __name__ == "__main__":
    main()
