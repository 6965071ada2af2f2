"""What the bandwidth model says of 8, 64 and 512 GPUs, under figures that are assumed and not measured.

`docs/concepts/communication.md` holds the same tables; a test compares them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from exchange_model import (
    Machine,
    Transformer,
    bandwidth_for_share,
    bandwidth_to_hide,
    predict,
    shuffle_share,
    tokens_to_hide_waits,
)

GIGA = 1e9
REACHED = 0.7  # of a link's nominal speed, in an all-to-all of uneven parts
# 400 TFLOP/s in bfloat16; NVLink at 450 GB/s each way; nodes of 8; 30 µs for an operation and 1 µs for each peer.
CARD_EACH = Machine(400e12, 8, 450 * GIGA * REACHED, 50 * GIGA * REACHED, 30e-6, 1e-6)
CARD_SHARED = replace(CARD_EACH, between=50 * GIGA * REACHED / 8)
LINKS = {"400 Gb/s per GPU": CARD_EACH, "400 Gb/s per node": CARD_SHARED}
TOKENS = 8192  # source and target tokens of one GPU in an update


@dataclass(frozen=True)
class Case:
    """A model of a named size."""

    name: str
    model: Transformer


WMT15 = Case("wmt15", Transformer(512, 2048, layers=6, expert_layers=6, num_experts=16, vocabulary=32_000))
ML50 = Case("ml50", Transformer(1024, 4096, layers=12, expert_layers=12, num_experts=16, vocabulary=250_000))
COLUMNS = ("model, experts N, GPUs W, links between nodes", "P", "MB sent", "exchange, ms", "computing, ms",
           "averaging, ms", "exchange's share", "≤ experts' time")  # fmt: skip
LIMIT_COLUMNS = ("model, experts N, GPUs W", "10% of the update, GB/s", "experts' time, GB/s", "tokens for the waits")


def cases() -> list[tuple[Case, int, int]]:
    """Models, numbers of experts, numbers of GPUs: as many experts as GPUs, and fewer, which are replicated."""
    return [
        (case, experts, world_size)
        for case in (WMT15, ML50)
        for world_size in (8, 64, 512)
        for experts in (8, 64, 512)
        if experts <= world_size
    ]


def prediction_rows(tokens: int = TOKENS) -> list[list[object]]:
    """One line for each model, number of experts and GPUs, and kind of link that it uses."""
    rows: list[list[object]] = []
    for case, experts, world_size in cases():
        model = replace(case.model, num_experts=experts)
        for link, machine in LINKS.items():
            if world_size <= machine.node_size:
                if machine is not CARD_EACH:
                    continue  # no links between nodes
                link = "-"
            found = predict(model, machine, world_size, tokens)
            times = [found.exchange * 1000, found.compute * 1000, found.averaging * 1000]
            name = f"{case.name}, {experts}, {world_size}, {link}"
            share, hides = f"{found.share:.1%}", "yes" if found.hides else "no"
            rows.append([name, found.group_size, found.num_bytes / 1e6, *times, share, hides])
    return rows


def limit_rows(tokens: int = TOKENS) -> list[list[object]]:
    """From which speed of all links (reached, each way, per GPU), and from how many tokens on, the exchange hides."""
    rows: list[list[object]] = []
    for case, experts, world_size in cases():
        model = replace(case.model, num_experts=experts)
        size = predict(model, CARD_EACH, world_size, tokens).group_size
        extra = shuffle_share(experts, model.width)
        speed = bandwidth_for_share(model, CARD_EACH, world_size, tokens) / GIGA
        rows.append([
            f"{case.name}, {experts}, {world_size}",
            speed if speed < math.inf else "none",
            bandwidth_to_hide(model.inner, CARD_EACH.flops, size, extra=extra) / GIGA,
            tokens_to_hide_waits(model, CARD_EACH, world_size),
        ])  # fmt: skip
    return rows
