"""Validation loss and perplexity of each task and each group of tasks, next to fairseq's total.

A validation batch holds one task. Its sums go into the logging output under the task's name, with zeros for all others:
fairseq adds logging outputs up over processes, and these must have the same keys, of the same types, on each.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fairseq import utils
from fairseq.logging import metrics
from torch import Tensor

SUMS = ("loss", "nll_loss", "sample_size", "ntokens")


@dataclass(frozen=True)
class Group:
    """A set of tasks with an average, such as a tier of language pairs; a task alone is the group of its name."""

    name: str
    tasks: tuple[str, ...]


def add_task_sums(logging_output: dict[str, Any], task: str, tasks: Iterable[str]) -> None:
    """Add this batch's sums as those of `task`, and zeros as those of the other tasks."""
    sums = {name: logging_output.get(name, logging_output.get("loss")) for name in SUMS}
    zeros = {name: torch.zeros_like(value) if isinstance(value, Tensor) else 0 for name, value in sums.items()}
    for other in tasks:
        for name, value in (sums if other == task else zeros).items():
            logging_output[f"{other}_{name}"] = value


def log_groups(logging_outputs: Sequence[Mapping[str, Any]], groups: Iterable[Group]) -> None:
    """Log loss, nll_loss (base 2) and ppl of each group, over the tokens of its tasks together."""
    for group in groups:
        sums = {
            name: sum(log.get(f"{task}_{name}", 0) for log in logging_outputs for task in group.tasks) for name in SUMS
        }
        if not sums["sample_size"] or not sums["ntokens"]:
            continue
        loss = sums["loss"] / sums["sample_size"] / math.log(2)
        nll_loss = sums["nll_loss"] / sums["ntokens"] / math.log(2)
        key = f"{group.name}_nll_loss"
        metrics.log_scalar(f"{group.name}_loss", loss, sums["sample_size"], priority=1000, round=3)
        metrics.log_scalar(key, nll_loss, sums["ntokens"], priority=1000, round=3)
        metrics.log_derived(f"{group.name}_ppl", lambda meters, key=key: utils.get_perplexity(meters[key].avg), 1000)


def plain_numbers(log: Mapping[str, Any]) -> dict[str, Any]:
    """A logging output with plain numbers, which a GPU's tensors of one type become in one copy."""
    numbers = dict(log)
    alike: defaultdict[tuple[Any, Any], list[str]] = defaultdict(list)
    for key, value in log.items():
        if isinstance(value, Tensor) and value.dim() == 0:
            alike[value.dtype, value.device].append(key)
    for keys in alike.values():
        numbers |= zip(keys, torch.stack([log[key] for key in keys]).tolist(), strict=True)
    return numbers


def group_values(meters: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """Loss, nll_loss, ppl and tokens of a group (or, with an empty prefix, of everything) as logged, unrounded."""
    loss = meters[f"{prefix}loss"]
    nll_loss = meters.get(f"{prefix}nll_loss", loss)
    bits = float(nll_loss.avg)
    return {
        "loss": float(loss.avg),
        "nll_loss": bits,
        "ppl": 2.0**bits if bits < 1000 else math.inf,
        "tokens": int(nll_loss.count),
    }
