"""Training in 1, 2 and 4 processes of one machine: tokens per second and the exchange's share.

    python benchmarks/bench_scaling.py --write

A small `base_moe_wmt15`, its experts spread over the processes, and stock fairseq's dense `transformer` of the same
active size train on the same batches in the same processes, in turn.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import islice
from statistics import fmean, median
from typing import Any

import torch
from bench_step import COMMON, OURS, SPARSE, STOCK, STOCKS
from fairseq.trainer import Trainer
from measure import Report, benchmark
from timing import Floor, Ratio
from torch import distributed as dist
from wmt15_models import SMALL, Size, batches, models, sentences, sparse_config, stock_config, translation_task

from fairseq_mtmoe.slots import expert_layers

TINY = Size(width=64, inner=256, layers=2, heads=2, num_experts=8, symbols=1_000)
# By number of processes. At a width of 64 an exchange takes as long as a block computes.
FLOORS = {SMALL: {1: 1.0, 2: 0.9, 4: 0.9}, TINY: {1: 0.9, 2: 0.65}}
WARMUPS = 2
TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Plan:
    """The models' size, tokens of a batch, and updates of each system."""

    size: Size
    max_tokens: int
    repetitions: int


@dataclass(frozen=True)
class Step:
    """One update in one process: seconds, target tokens, and the exchange's seconds and bytes."""

    seconds: float
    tokens: int
    exchange: float
    num_bytes: int


Steps = dict[str, list[Step]]  # by system


def measure_processes(num_processes: int, plan: Plan) -> list[Steps]:
    """Start processes, and return the steps that each of them measured."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        address = f"file://{folder}/meeting"
        futures = [pool.submit(measure, rank, num_processes, address, plan) for rank in range(num_processes)]
        return [future.result() for future in futures]


def measure(rank: int, num_processes: int, address: str, plan: Plan) -> Steps:
    """Train as one of several processes, and return this process's steps."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=num_processes, timeout=TIMEOUT)
    systems = build_systems(plan)
    samples = samples_of_process(plan)
    steps: Steps = {name: [] for name in systems}
    names = list(systems)
    for repetition, sample in enumerate(samples, start=-WARMUPS):
        names.reverse()  # so that each system begins in every second repetition
        for name in names:
            step = systems[name](sample)
            if repetition >= 0:
                steps[name].append(step)
    dist.destroy_process_group()
    return steps


def samples_of_process(plan: Plan) -> list[dict[str, Any]]:
    """Return this process's batches, which both systems get."""
    num_processes = dist.get_world_size()
    data = sentences(translation_task(plan.size), 100_000)
    number = (WARMUPS + plan.repetitions) * num_processes
    return list(islice(batches(data, plan.max_tokens), dist.get_rank(), number, num_processes))


class System:
    """A model in fairseq's trainer; a call takes a step, as all processes do at the same time."""

    def __init__(self, task: Any, model: torch.nn.Module, config: Any, barriers: Any) -> None:
        self.trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
        self.trainer.lr_step_begin_epoch(1)
        self.barriers = barriers
        self.records = [layer.comm for layer in expert_layers(model).values()]
        for record in self.records:
            record.enabled = True

    def __call__(self, sample: dict[str, Any]) -> Step:
        """Take a step, and return what it took."""
        for record in self.records:
            record.reset()
        dist.barrier(self.barriers)
        start = time.perf_counter()
        self.trainer.train_step([sample])
        seconds = time.perf_counter() - start
        exchange = sum(record.seconds for record in self.records)
        num_bytes = sum(record.num_bytes for record in self.records)
        return Step(seconds, int(sample["ntokens"]), exchange, num_bytes)


def build_systems(plan: Plan) -> dict[str, System]:
    """Return stock fairseq's model and ours, each in a trainer of its own."""
    task = translation_task(plan.size)
    pair = models(plan.size, task)
    barriers = dist.new_group()  # Apart from fairseq's groups, whose operations have an order.
    world = ("--distributed-backend", "gloo", "--distributed-world-size", str(dist.get_world_size()))
    options = (*COMMON, "--cpu", *world, "--ddp-backend", "pytorch_ddp")
    return {
        STOCK: System(task, pair["stock"], stock_config(plan.size, *options, *STOCKS), barriers),
        SPARSE: System(task, pair["sparse"], sparse_config(plan.size, *options, *OURS), barriers),
    }


def updates_of(processes: list[Steps], system: str) -> list[tuple[Step, ...]]:
    """Return the steps of all processes in each update."""
    return list(zip(*(steps[system] for steps in processes), strict=True))


def speed(update: tuple[Step, ...]) -> float:
    """Return the target tokens per second of all processes together, as long as the slowest needs."""
    return sum(step.tokens for step in update) / max(step.seconds for step in update)


def exchange_share(update: tuple[Step, ...]) -> float:
    """Return the percentage of an update in which tokens are exchanged."""
    return 100 * fmean(step.exchange for step in update) / max(step.seconds for step in update)


def spread(values: list[float]) -> Ratio:
    """Return the median and the quartiles of values."""
    return Ratio.of(values, [1.0] * len(values))


def show(report: Report, measured: dict[int, list[Steps]], floors: dict[int, float]) -> None:
    """Show tokens per second, compared with one process and with stock fairseq, and the exchange of tokens."""
    speeds, exchanges = [], []
    alone = median(map(speed, updates_of(measured[1], SPARSE)))
    for count, processes in measured.items():
        updates = updates_of(processes, SPARSE)
        sparse, stock = list(map(speed, updates)), list(map(speed, updates_of(processes, STOCK)))
        ratio = Ratio.of(sparse, stock)
        speeds.append([str(count), spread(sparse), spread(stock), median(sparse) / alone, ratio])
        floor = Floor(floors[count], at_most=False)
        report.figure(f"tokens/s over stock fairseq's, {count} processes", ratio.median, floor, (ratio.low, ratio.high))
        if count > 1:
            sent = median(step.num_bytes for step in processes[0][SPARSE])
            exchanges.append([str(count), spread(list(map(exchange_share, updates))), sent / 1e6])
    columns = ["processes", SPARSE, STOCK, f"{SPARSE} over one process", f"{SPARSE} over stock"]
    cores = len(os.sched_getaffinity(0))
    note = f"All processes together; medians and quartiles. {cores} cores, which processes share."
    report.table("Target tokens per second", columns, speeds, note)
    columns = ["processes", "% of the update (quartiles)", "MB sent by a process"]
    note = "As `--log-expert-comm` counts it, waiting for other processes included."
    report.table("The exchange in an update", columns, exchanges, note)


@benchmark("scaling", "Training in several processes", "Tiny models, and 1 and 2 processes alone.")
def main(report: Report, small: bool, repetitions: int) -> None:
    """Train in several processes of this machine, and compare them with stock fairseq."""
    # Tiny updates differ by a fifth from one to the next, so that they need more repetitions.
    plan = Plan(TINY, 512, 3 * repetitions) if small else Plan(SMALL, 2048, repetitions)
    measured = {count: measure_processes(count, plan) for count in FLOORS[plan.size]}
    report.text(
        f"{plan.size}; BASE gates, tokens shuffled; float32, one thread in each process, gloo, "
        f"`--ddp-backend pytorch_ddp` for both models. Batches of at most {plan.max_tokens:,} tokens in each process. "
        f"The models take turns, {plan.repetitions} updates of each. The stock model has fairseq's loss and Adam, ours "
        "the plugin's."
    )
    for count, processes in measured.items():
        for rank, steps in enumerate(processes):
            named = {name: list(map(asdict, steps[name])) for name in steps}
            report.raw(f"process {rank} of {count}", named)
    show(report, measured, FLOORS[plan.size])


if __name__ == "__main__":
    main()
