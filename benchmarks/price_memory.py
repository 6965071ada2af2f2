"""Running means of logged prices with any memory, as `RunningPrices` makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MEMORIES = (0.0, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
PLAIN = 80  # updates, of the plain mean that is compared with them


def name(memory: float) -> str:
    """Of a memory, in tables and files."""
    return f"{memory:g}"


NAMES = (*map(name, MEMORIES), f"last {PLAIN}")


def memory_mean(prices_SX: Tensor, memory: float) -> Tensor:
    """The mean (…) of the prices of S updates (S, …), each one's weight `memory` times that of the next."""
    ages_S = torch.arange(len(prices_SX) - 1, -1, -1, dtype=torch.float64)
    weights_S = memory**ages_S
    return torch.tensordot(weights_S / weights_S.sum(), prices_SX.double(), 1)


def means(prices_SX: Tensor) -> dict[str, Tensor]:
    """The mean with each memory, and the plain one of the last updates, by name."""
    every = [*(memory_mean(prices_SX, memory) for memory in MEMORIES), prices_SX[-PLAIN:].double().mean(0)]
    return dict(zip(NAMES, every, strict=True))


def read_log(path: Path) -> dict[int, dict[str, Any]]:
    """The lines of `train_keeping_prices.py`'s log by update; of lines with the same update, the last one."""
    lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {line["update"]: line for line in sorted(lines, key=lambda line: int(line["update"]))}


def prices_until(log: dict[int, dict[str, Any]], update: int) -> Tensor:
    """The prices (S, L, N) of the L layers in the S updates until one, that one too."""
    return torch.tensor([line["prices"] for number, line in log.items() if number <= update], dtype=torch.float64)


def training_loads(log: dict[int, dict[str, Any]]) -> dict[str, list[float]]:
    """Of each layer: the mean over updates of the fullest expert's load, and the highest; in shares of an even one."""
    most_SL = torch.tensor([[most for _, most in line["loads"]] for line in log.values()], dtype=torch.float64)
    return {"mean": most_SL.mean(0).tolist(), "highest": most_SL.amax(0).tolist()}
