"""One value of a nested structure replaced by another one."""

import math
import random
from argparse import Namespace
from typing import Any

import torch

ODD = (
    None, "", "x", "12", "nan", "(0.9, 0.98)", "é\ud800", -1, 0, 1, 3, 2**70, 10**5000, 1.5, -0.5, 1e300, math.nan,
    math.inf, True, [], [None], ["x"], [[]], (), (1, 2), {}, {"x": 1}, {0: {}},
)  # fmt: skip
TENSORS = (torch.zeros(()), torch.zeros(3), torch.zeros(0), torch.zeros(2, 3, dtype=torch.int64))


def replace_one(draw: random.Random, value: Any, others: tuple[Any, ...] = ODD) -> str:
    """Replace, remove or add one value at a random depth; returns where and what it was and is."""
    path = ""
    while True:
        entries = vars(value) if isinstance(value, Namespace) else value
        keys = list(entries) if isinstance(entries, dict) else list(range(len(entries)))
        key = draw.choice(keys)
        path += f".{key}"
        inner = entries[key]
        is_open = isinstance(inner, dict | list | Namespace) and (
            vars(inner) if isinstance(inner, Namespace) else inner
        )
        if not is_open or draw.random() < 0.1:
            break
        value = inner
    if isinstance(inner, tuple) and draw.random() < 0.5:
        entries[key] = inner and (*inner[:-1], draw.choice(others))
    elif draw.random() < 0.06:
        del entries[key]
        return f"{path} removed"
    else:
        entries[key] = _other(draw, inner, others)
    return f"{path}: {_shown(inner)} -> {_shown(entries[key])}"


def _other(draw: random.Random, value: Any, others: tuple[Any, ...]) -> Any:
    if isinstance(value, torch.Tensor) and draw.random() < 0.5:
        forms = [value.reshape(-1), value[None], value.to(torch.int64), value.to(torch.float64), value * math.nan]
        return draw.choice([*forms, *([value[:1].clone()] if value.dim() else [])])
    return draw.choice(others)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}"
    return f"{value.bit_length()} bits" if isinstance(value, int) and value > 2**64 else ascii(value)[:60]
