"""Run logs as a training writes them, of any size, in which each test may let something go wrong."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from typing import Any

from fairseq_mtmoe.report.run_log import FILE_NAME

LAYERS = ("encoder.layers.1", "decoder.layers.1")
TIERS = ("low", "mid", "high")
Event = dict[str, Any]


def language_pairs(number: int) -> list[str]:
    return [f"en-{chr(97 + index // 26)}{chr(97 + index % 26)}" for index in range(number)]


def events_of_a_run(
    pairs: int = 3,
    updates: int = 1000,
    validations: int = 10,
    train_events: int = 20,
    num_experts: int = 4,
    change: Callable[[Event], Event | None] = lambda event: event,
) -> list[Event]:
    """Events in their order; `change` makes another event of each, or none."""
    names, random = language_pairs(pairs), Random(pairs * updates)
    tiers = dict(zip(names, itertools.cycle(TIERS), strict=False))
    epochs = [
        {"event": "sampling", "epoch": epoch, "updates_before": updates * (epoch - 1) // 4, "temperature": 1.0 * epoch,
         "probabilities": dict.fromkeys(names, 1 / pairs), "of_candidates": False}
        for epoch in range(1, 5)
    ]  # fmt: skip
    found = [_run(names, tiers, updates), *epochs]
    found += [_train(updates * number // train_events, updates, random) for number in range(1, train_events + 1)]
    for update in (updates * number // validations for number in range(1, validations + 1)):
        found += [_valid(update, updates, names, tiers), _experts(update, names, num_experts, random)]
    order = {"run": -1, "sampling": 0, "train": 1, "valid": 2, "experts": 3}
    found.sort(key=lambda event: (event.get("update", event.get("updates_before", -1)), order[event["event"]]))
    return [made for event in found if (made := change(event)) is not None]


def write_run(folder: Path, events: Iterable[Event]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE_NAME).write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def _run(names: list[str], tiers: dict[str, str], updates: int) -> Event:
    return {
        "event": "run", "sizes": {pair: 100 * number for number, pair in enumerate(names, 1)}, "tiers": tiers,
        "task_names": [pair[3:] for pair in names], "task_ids": "target", "data": "data/tiny",
        "options": {"arch": "base_moe_tiny", "max_update": updates, "lr": [0.005]}, "versions": {"torch": "2.13.0"},
        "commit": "0123abc", "command": "fairseq-train data/tiny", "hardware": "1 process, CPU with 2 cores",
        "started": "2026-11-22T06:00:00+00:00", "sampling_method": "temperature", "seed": 7,
    }  # fmt: skip


def _so_far(update: int) -> Event:
    return {"update": update, "minutes": update / 100, "tokens": update * 500}


def _train(update: int, updates: int, random: Random) -> Event:
    loss = 3 + 6 * math.exp(-4 * update / updates) + random.uniform(-0.1, 0.1)
    return {"event": "train", **_so_far(update), "loss": loss, "nll_loss": loss - 1, "lr": 0.005, "gnorm": 1.5,
            "wps": 9000.0, "ups": 18.0, "padding": 0.04}  # fmt: skip


def _valid(update: int, updates: int, names: list[str], tiers: dict[str, str]) -> Event:
    def figures(floor: float) -> Event:
        ppl = floor + 100 * math.exp(-5 * update / updates)
        return {"loss": math.log2(ppl) + 1, "nll_loss": math.log2(ppl), "ppl": ppl, "tokens": 400}

    return {
        "event": "valid", "epoch": 1, "subset": "valid", **_so_far(update),
        "pairs": {pair: figures(10.0 + number) for number, pair in enumerate(names)},
        "tiers": {tier: figures(12.0) for tier in dict.fromkeys(tiers.values())}, "all": figures(11.0),
    }  # fmt: skip


def _experts(update: int, names: list[str], num_experts: int, random: Random) -> Event:
    rows = {layer: [[random.randint(50, 150) for _ in range(num_experts)] for _ in names] for layer in LAYERS}
    return {"event": "experts", "epoch": 1, "update": update, "subset": "valid",
            "task_names": [pair[3:] for pair in names], "layers": rows}  # fmt: skip
