"""Training in 1, 2 and 4 processes of one machine: tokens per second, and what the exchange of tokens takes of them.

    python benchmarks/bench_scaling.py --write

A small `base_moe_wmt15`, its experts spread over the processes, and stock fairseq's dense `transformer` of the same
active size train on the same batches in the same processes, in turn. Beside it the bandwidth model of
`docs/concepts/communication.md`: its two constants are fitted to exchanges by themselves and checked against those of
real updates; and with assumed figures it predicts 8, 64 and 512 GPUs.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

import click
from exchange_model import Transformer, count_bytes, fit_link, gather_bytes, num_operations, row_bytes, shuffle_bytes
from measure import Report, report_name, report_options
from scaling_predictions import COLUMNS, LIMIT_COLUMNS, TOKENS, limit_rows, prediction_rows
from scaling_processes import ALIGNED, PING_BYTES, SPARSE, STOCK, STRONG, WEAK, Found, Plan, Step, measure_processes
from timing import Floor, Ratio, shown
from wmt15_models import SMALL, Size

TINY = Size(width=64, inner=256, layers=2, heads=2, num_experts=8, symbols=1_000)
WORLD_SIZES = (1, 2, 4)
# By number of processes. At a width of 64 an exchange takes as long as a block computes.
FLOORS = {SMALL: {1: 1.0, 2: 0.9, 4: 0.9}, TINY: {1: 0.9, 2: 0.65}}
Several = dict[int, list[Found]]  # by number of processes, what each of them measured


def updates(found: list[Found], kind: str, system: str) -> list[list[Step]]:
    return [list(steps) for steps in zip(*(one.steps[kind, system] for one in found), strict=True)]


def of_updates(found: list[Found], kind: str, system: str, value: Callable[[list[Step]], float]) -> list[float]:
    return [value(steps) for steps in updates(found, kind, system)]


def wall(steps: list[Step]) -> float:
    return max(step.seconds for step in steps)


def speed(steps: list[Step]) -> float:
    return sum(step.tokens for step in steps) / wall(steps)


def exchange(steps: list[Step]) -> float:
    return statistics.mean(step.exchange for step in steps)


def spread(values: list[float]) -> str:
    found = Ratio.of(values, [1.0] * len(values))
    return f"{shown(found.median)} ({shown(found.low)}-{shown(found.high)})"


def show_speed(report: Report, several: Several, floors: Mapping[int, float]) -> None:
    """Tokens per second, beside one process and beside stock fairseq."""
    rows = []
    for kind in (WEAK, STRONG):
        for world_size, found in several.items():
            own, stock = (of_updates(found, kind, name, speed) for name in (SPARSE, STOCK))
            alone = of_updates(several[1], kind, SPARSE, speed)
            ratio = Ratio.of(own, stock)
            gain = statistics.median(own) / statistics.median(alone)
            rows.append([f"{kind}, {world_size}", spread(own), spread(stock), gain, str(ratio)])
            if kind == WEAK:
                report.figure(f"tokens/s over stock fairseq's, {world_size} processes", ratio.median,
                              Floor(floors[world_size], at_most=False), (ratio.low, ratio.high))  # fmt: skip
    report.table(
        "Target tokens per second",
        ["batches, processes", SPARSE, STOCK, f"{SPARSE} over one process", f"{SPARSE} over stock"],
        rows,
        f"Of all processes together; medians and quartiles. {len(os.sched_getaffinity(0))} cores: more processes than "
        "that share them, and cannot be faster.",
    )


def show_exchange(report: Report, several: Several) -> None:
    """Time and bytes of the exchange, and what of the time is waiting."""
    rows = []
    for kind in (WEAK, STRONG):
        for world_size, found in several.items():
            if world_size == 1:
                continue
            share = of_updates(found, kind, SPARSE, lambda steps: exchange(steps) / wall(steps))
            bare = of_updates(found, kind, ALIGNED, exchange)
            first = found[0].steps[kind, SPARSE]
            rows.append([
                f"{kind}, {world_size}",
                statistics.median(of_updates(found, kind, SPARSE, exchange)) * 1000,
                spread([100 * value for value in share]),
                statistics.median(bare) * 1000,
                statistics.median(step.num_bytes for step in first) / 1e6,
                first[0].operations,
            ])  # fmt: skip
    report.table(
        "The exchange in an update",
        ["batches, processes", "ms", "% of the update (quartiles)", "ms without waiting", "MB sent", "operations"],
        rows,
        "As `--log-expert-comm` counts it, the mean of the processes. Without waiting: in updates of their own, where "
        "each exchange begins when all processes have come to it.",
    )


def predicted_bytes(size: Size, world_size: int, steps: Iterable[Step]) -> float:
    """What the formula says all processes send in an update with these tokens, routed evenly."""
    share = 1 - 1 / world_size
    layers = size.layers // 2  # of each stack, of whose tokens `rows` and `places` are the sum
    total = 0.0
    for step in steps:
        total += layers * row_bytes(step.rows * share, step.rows * share, size.width, 4)
        total += layers * shuffle_bytes(step.places * share, step.places * share, size.num_experts)
        total += 2 * layers * count_bytes(size.num_experts, world_size, shuffles=True)
        total += gather_bytes(world_size, stacks=2)
    return total


def show_model(report: Report, size: Size, several: Several) -> None:
    """The fitted constants, and the model's error in bytes, in the exchange's time and in the update's."""
    links, rows = [], []
    for world_size, found in several.items():
        if world_size == 1:
            continue
        medians = [statistics.median(second for one in found for second in one.pings[size]) for size in PING_BYTES]
        latency, bandwidth = fit_link(PING_BYTES, medians)
        fitted = [latency + num_bytes / bandwidth for num_bytes in PING_BYTES]
        error = statistics.median(abs(line / median - 1) for line, median in zip(fitted, medians, strict=True))
        links.append([f"{world_size}", latency * 1e6, bandwidth / 1e6, f"{error:.0%}"])
        for kind in (WEAK, STRONG):
            rows.append(_checked(report, size, several, world_size, kind, latency, bandwidth))
    report.table(
        "Exchanges by themselves",
        ["processes", "latency, µs", "MB/s out of each process", "median error of the line"],
        links,
        f"All-to-alls of {PING_BYTES[0]:,} to {PING_BYTES[-1]:,} bytes, and the line nearest to their times.",
    )
    report.table(
        "The model against real updates",
        ["batches, processes", "bytes, predicted / sent", "exchange predicted, ms", "/ measured without waiting",
         "/ measured", "update predicted, s", "/ measured"],
        rows,
        "Median of predicted over measured, and quartiles. The update's prediction is one process's speed in FLOP/s, "
        "shared by processes that share a core, and the exchange; waiting, and averaging gradients, are not in it.",
    )  # fmt: skip


def _checked(
    report: Report, size: Size, several: Several, world_size: int, kind: str, latency: float, bandwidth: float
) -> list[object]:
    found = several[world_size]
    operations = size.layers * num_operations(shuffles=True) + 1

    def seconds(steps: list[Step]) -> float:
        return operations * latency + predicted_bytes(size, world_size, steps) / world_size / bandwidth

    def sent(steps: list[Step]) -> float:
        return sum(step.num_bytes for step in steps)

    turns = max(1.0, world_size / len(os.sched_getaffinity(0)))
    rate = statistics.median(of_updates(several[1], kind, SPARSE, lambda steps: flops(size, steps) / wall(steps)))

    def update(steps: list[Step]) -> float:
        return max(flops(size, [step]) for step in steps) / rate * turns + seconds(steps)

    real, bare = updates(found, kind, SPARSE), updates(found, kind, ALIGNED)
    num_bytes = [predicted_bytes(size, world_size, steps) / sent(steps) for steps in real]
    exact = Ratio.of(num_bytes, [1.0] * len(num_bytes))
    if kind == WEAK:
        report.figure(f"bytes predicted over bytes sent, {world_size} processes", exact.median, Floor(1.1))
        report.figure(f"bytes sent over bytes predicted, {world_size} processes", 1 / exact.median, Floor(1.1))
    return [
        f"{kind}, {world_size}",
        str(exact),
        statistics.median(map(seconds, real)) * 1000,
        str(Ratio.of([seconds(steps) for steps in bare], [exchange(steps) for steps in bare])),
        str(Ratio.of([seconds(steps) for steps in real], [exchange(steps) for steps in real])),
        statistics.median(map(update, real)),
        str(Ratio.of([update(steps) for steps in real], [wall(steps) for steps in real])),
    ]


def flops(size: Size, steps: Iterable[Step]) -> float:
    model = Transformer(size.width, size.inner, size.layers, size.layers, size.num_experts, size.symbols)
    return sum(model.flops(step.rows / 2) for step in steps)


def show_predictions(report: Report) -> None:
    report.table(
        "Predicted: 8, 64 and 512 GPUs",
        COLUMNS,
        prediction_rows(),
        f"Nothing here is measured. Assumed: 400 TFLOP/s in bfloat16, {TOKENS:,} source and target tokens per GPU, 8 "
        "GPUs in a node on NVLink at 450 GB/s, links reached to 70%, 30 µs for an operation and 1 µs for each peer. "
        "See docs/concepts/communication.md.",
    )
    report.table(
        "Predicted: from where on the exchange hides",
        LIMIT_COLUMNS,
        limit_rows(),
        "Speeds reached out of each GPU, on all links, at which the exchange is 10% of the update (none: its waits "
        "alone are more) or its bytes take as long as the experts; and tokens of either side per GPU at which the "
        "experts take as long as the waits.",
    )


@click.command(context_settings={"show_default": True})
@click.option("--max-tokens", type=int, help="Tokens in a process's batch [default: 2048, or 512 with --small].")
@click.option("--repetitions", type=click.IntRange(5), help="Updates of each [default: 9, or 30 with --small].")
@click.option("--ddp-backend", default="pytorch_ddp", type=click.Choice(["pytorch_ddp", "legacy_ddp"]))
@report_options("Tiny models, and 1 and 2 processes alone.")
def main(
    max_tokens: int | None, repetitions: int | None, ddp_backend: str, small: bool, check: bool, write: bool
) -> None:
    """Train in several processes of this machine, and compare the exchange with what the model says."""
    small = small or check
    size = TINY if small else SMALL
    # Tiny updates differ by a fifth from one to the next: of nine, the median does too.
    plan = Plan(size, max_tokens or (512 if small else 2048), repetitions or (30 if small else 9), ddp_backend)
    report = Report(report_name("scaling", small), "Training in several processes")
    several = {count: measure_processes(count, plan) for count in (WORLD_SIZES[:2] if small else WORLD_SIZES)}
    describe(report, plan)
    for count, found in several.items():
        data = [
            {
                "steps": {", ".join(key): list(map(asdict, steps)) for key, steps in one.steps.items()},
                "pings": one.pings,
            }
            for one in found
        ]
        report.raw(f"{count} processes", data)
    show_speed(report, several, FLOORS[size])
    show_exchange(report, several)
    show_model(report, size, several)
    show_predictions(report)
    report.finish(write, check)


def describe(report: Report, plan: Plan) -> None:
    size = plan.size
    report.text(
        f"{size.layers}+{size.layers} pre-norm blocks of {size.width} (inner size {size.inner}), {size.symbols:,} "
        f"words, {size.num_experts} experts (BASE gates, tokens shuffled) in every second block; float32, one thread "
        f"in each process, gloo, `--ddp-backend {plan.backend}` for both models. Batches of at most "
        f"{plan.max_tokens:,} tokens: in each process (“{WEAK}”) or in all together (“{STRONG}”); the same for both "
        f"models, which take turns. {plan.repetitions} updates of each. The stock model has fairseq's loss and Adam, "
        "ours the plugin's."
    )


if __name__ == "__main__":
    main()
