"""What each process of the scaling benchmark does: training steps of both models in turn, then exchanges by themselves.

Processes are joined by gloo, have one thread each, and train in fairseq's trainer as its command does.
"""

from __future__ import annotations

import logging
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any

import torch
from torch import distributed as dist
from wmt15_models import Size, batches, models, sentences, sparse_config, stock_config, translation_task

from fairseq_mtmoe.moe.parallel.collectives import CommRecord
from fairseq_mtmoe.moe.parallel.placement import place_experts
from fairseq_mtmoe.slots import expert_layers

COMMON = (
    "--cpu", "--label-smoothing", "0.1", "--adam-betas", "(0.9,0.98)", "--clip-norm", "1.0", "--lr", "0.0007",
    "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "4000", "--distributed-backend", "gloo",
)  # fmt: skip
STOCKS = ("--criterion", "label_smoothed_cross_entropy", "--optimizer", "adam")
OURS = ("--criterion", "moe_label_smoothed_cross_entropy", "--optimizer", "fused_adam")
WEAK, STRONG = "same batch per process", "same global batch"
STOCK, SPARSE, ALIGNED = "stock fairseq transformer", "base_moe_wmt15", "base_moe_wmt15, exchanges begun together"
WARMUPS = 2
PING_BYTES = tuple(2**power for power in range(10, 23, 2))
PINGS = 25
PATIENCE = timedelta(minutes=5)


@dataclass(frozen=True)
class Plan:
    """What is measured: models, tokens in a batch (of one process, or of all), repetitions, fairseq's back end."""

    size: Size
    max_tokens: int
    repetitions: int
    backend: str


@dataclass
class Step:
    """One update in one process; `exchange` is in seconds, bytes are those that left it.

    `tokens` are the target's; `rows` the source's and the target's; `places` both with padding.
    """

    seconds: float
    tokens: int
    rows: int
    places: int
    exchange: float = 0.0
    num_bytes: int = 0
    operations: int = 0


@dataclass
class Found:
    """What one process measured: steps by batch's kind and system, and seconds of exchanges by bytes sent."""

    steps: dict[tuple[str, str], list[Step]] = field(default_factory=dict)
    pings: dict[int, list[float]] = field(default_factory=dict)


def measure_processes(world_size: int, plan: Plan) -> list[Found]:
    """What each of so many processes, started here, measured."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(world_size, mp_context=context) as pool:
        address = f"file://{folder}/meeting"
        futures = [pool.submit(_measure, rank, world_size, address, plan) for rank in range(world_size)]
        return [future.result() for future in futures]


def _measure(rank: int, world_size: int, address: str, plan: Plan) -> Found:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # once per process is too often
    logging.disable(logging.INFO)
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size, timeout=PATIENCE)
    found = Found()
    systems = _systems(plan)
    samples = _samples(plan)
    for repetition in range(-WARMUPS, plan.repetitions):
        keys = list(samples)
        first = repetition % len(keys)
        for key in keys[first:] + keys[:first]:
            _, name = key
            step = systems[SPARSE if name == ALIGNED else name](samples[key][repetition + WARMUPS], name == ALIGNED)
            if repetition >= 0:
                found.steps.setdefault(key, []).append(step)
    placement = place_experts(plan.size.num_experts)
    if placement.is_sharded:
        found.pings = {num_bytes: _ping(num_bytes, placement.group, placement.group_size) for num_bytes in PING_BYTES}
    dist.destroy_process_group()
    return found


def _samples(plan: Plan) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Batches of this process for every kind and system; both models see the same ones."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    data = sentences(translation_task(plan.size), 100_000)
    number = (WARMUPS + plan.repetitions) * world_size
    found = {}
    for kind, max_tokens in ((WEAK, plan.max_tokens), (STRONG, plan.max_tokens // world_size)):
        mine = list(islice(batches(data, max_tokens), rank, number, world_size))
        found |= {(kind, name): mine for name in (STOCK, SPARSE, ALIGNED)}
    return found


class _System:
    """A model in fairseq's trainer, which takes a step when it is called, as all processes do at the same time."""

    def __init__(self, task: Any, model: torch.nn.Module, config: Any, barriers: Any) -> None:
        from fairseq.trainer import Trainer

        self.trainer = Trainer(config, task, model, task.build_criterion(config.criterion))
        self.trainer.lr_step_begin_epoch(1)
        self.barriers = barriers
        self.records = [layer.comm for layer in expert_layers(model).values()]
        for record in self.records:
            record.enabled = True

    def __call__(self, sample: dict[str, Any], aligned: bool) -> Step:
        for record in self.records:
            record.reset()
        with exchanges_begin_together(self.barriers) if aligned else nullcontext():
            dist.barrier(self.barriers)
            start = time.perf_counter()
            self.trainer.train_step([sample])
            seconds = time.perf_counter() - start
        return Step(
            seconds,
            int(sample["ntokens"]),
            int(sample["net_input"]["src_lengths"].sum()) + int(sample["ntokens"]),
            sample["net_input"]["src_tokens"].numel() + sample["target"].numel(),
            sum(record.seconds for record in self.records),
            sum(record.num_bytes for record in self.records),
            sum(record.exchanges for record in self.records),
        )


def _systems(plan: Plan) -> dict[str, _System]:
    task = translation_task(plan.size)
    pair = models(plan.size, task)
    barriers = dist.new_group()  # apart from fairseq's groups, whose operations have an order of their own
    several = ("--distributed-world-size", str(dist.get_world_size()), "--ddp-backend", plan.backend)
    return {
        STOCK: _System(task, pair["stock"], stock_config(plan.size, *COMMON, *several, *STOCKS), barriers),
        SPARSE: _System(task, pair["sparse"], sparse_config(plan.size, *COMMON, *several, *OURS), barriers),
    }


@contextmanager
def exchanges_begin_together(group: Any) -> Iterator[None]:
    """Let no process start an exchange, or its clock, before all are there: what is left is the exchange itself."""
    measure = CommRecord.measure

    def after_all(*args: Any) -> Any:
        dist.barrier(group)
        return measure(*args)

    CommRecord.measure = after_all
    try:
        yield
    finally:
        CommRecord.measure = measure


def _ping(num_bytes: int, group: Any, size: int) -> list[float]:
    """Seconds of all-to-alls in which so many bytes leave each process, begun together in the midst of computing.

    A process that computes may have to wait for its core; one that has only slept comes first.
    """
    matrix = torch.randn(640, 640)
    rows = torch.zeros(num_bytes // 4 // (size - 1) * size)
    found = []
    for _ in range(PINGS):
        arrived = torch.empty_like(rows)
        matrix @ matrix
        dist.barrier(group)
        start = time.perf_counter()
        dist.all_to_all_single(arrived, rows, group=group)
        found.append(time.perf_counter() - start)
    return found[PINGS // 5 :]
