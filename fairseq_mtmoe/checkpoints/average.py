"""The mean of several checkpoints' parameters: the job of fairseq's `scripts/average_checkpoints.py`.

As there, parameters in half precision are summed, and stay, in float32, and all else is the first checkpoint's.
A checkpoint without prices counts as zeros in both of their sums: the mean is of those that have some.
Checkpoints may be whole or in parts; the result is one file, without an optimizer's state: no optimizer was there.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints.assemble import load_mapped, whole
from fairseq_mtmoe.checkpoints.prices import prices_of, with_prices
from fairseq_mtmoe.checkpoints.sharding import PARTS, State
from fairseq_mtmoe.errors import UserError, raise_invalid

EPOCHS = re.compile(r"checkpoint(\d+)\.pt")
UPDATES = re.compile(r"checkpoint_\d+_(\d+)\.pt")
_WITHOUT_OPTIMIZER = tuple(part for part in PARTS if part != "optimizer")
_HALF = (torch.float16, torch.bfloat16)


def average(paths: Iterable[Path]) -> State:
    """The state of a checkpoint whose parameters are the means of those of all `paths`, at least one.

    Holds the sum and one checkpoint's parameters at a time.

    Raises:
        UserError: a checkpoint is missing or damaged, or has other parameters than the first.
    """
    result: State = {}
    total: dict[str, Tensor] = OrderedDict()
    first, count = Path(), 0
    for count, path in enumerate(paths, start=1):  # noqa: B007 (it is how many there were)
        if not result:
            first, result = path, whole(path, load_mapped(path), _WITHOUT_OPTIMIZER)
            total.update((key, _summand(value).clone()) for key, value in result["model"].items())
            continue
        model = whole(path, load_mapped(path), ["model"])["model"]
        total = _with_prices_of(model, total)
        model = {**{key: torch.zeros_like(value) for key, value in prices_of(total).items()}, **model}
        _check_same(model, total, path, first)
        for key, value in model.items():
            total[key] += _summand(value)
    for value in total.values():
        _ = value.div_(count) if value.is_floating_point() else value.floor_divide_(count)
    return {**result, "model": total}


def newest(folder: Path, name: re.Pattern[str], count: int, upper_bound: int | None) -> list[Path]:
    """The `count` checkpoints of a folder with the highest numbers up to a bound, the highest first.

    Args:
        name: `EPOCHS` or `UPDATES`, by whose number they count.

    Raises:
        UserError: there are fewer.
    """
    try:
        matches = [match for file in os.listdir(folder) if (match := name.fullmatch(file))]
    except OSError as error:
        raise UserError(f"`--inputs` must be one folder to find checkpoints in, but `{folder}` is none.") from error
    numbers = {int(match[1]): match[0] for match in matches if upper_bound is None or int(match[1]) <= upper_bound}
    option, example = (
        ("--num-epoch-checkpoints", "checkpoint3.pt")
        if name is EPOCHS
        else ("--num-update-checkpoints", "checkpoint_2_500.pt")
    )
    bound = "" if upper_bound is None else f" up to {upper_bound}"
    if not numbers:
        raise UserError(f"`{folder}` must hold checkpoints such as {example}{bound} for `{option}`, but has none.")
    if not 1 <= count <= len(numbers):
        raise_invalid(option, f"from 1 to the {len(numbers)} such checkpoints of `{folder}`{bound}", count)
    return [folder / numbers[number] for number in sorted(numbers, reverse=True)[:count]]


def _summand(value: Tensor) -> Tensor:
    return value.float() if value.dtype in _HALF else value


def _with_prices_of(model: dict[str, Tensor], total: dict[str, Tensor]) -> dict[str, Tensor]:
    """The sum so far with places for a model's prices, if those before had none."""
    new = {key: torch.zeros_like(value) for key, value in prices_of(model).items() if key not in total}
    return with_prices(total, {**prices_of(total), **new}) if new else total


def _check_same(model: dict[str, Tensor], total: dict[str, Tensor], path: Path, first: Path) -> None:
    different = {key for key in model.keys() | total.keys() if not _same_shape(model.get(key), total.get(key))}
    if different:
        raise UserError(
            f"`{path}` must hold the same parameters as `{first}` to be averaged with it, but `{min(different)}` is "
            "not the same in both."
        )


def _same_shape(one: Tensor | None, other: Tensor | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape
