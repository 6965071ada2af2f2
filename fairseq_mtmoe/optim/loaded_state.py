"""An optimizer's state from a file, checked against the parameters before it is loaded.

torch and fairseq believe what a file holds, and torch's fused kernels write as many numbers as the parameter has into
whatever moment they are given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from fairseq.optim.adam import Adam
from torch import Tensor

from fairseq_mtmoe.errors import UserError

ADAM = ("step", "exp_avg", "exp_avg_sq")
NEVER_NEGATIVE = {"step", "exp_avg_sq", "exp_avg_sq_row", "exp_avg_sq_col", "exp_inf", "square_avg", "acc_delta", "sum"}
Names = Callable[[], Sequence[str]]


def check_when_loading(optimizer: torch.optim.Optimizer, names: Names = tuple) -> None:
    """Have a torch optimizer check every state that it loads.

    Args:
        optimizer: of any kind.
        names: gives the parameters' names in the optimizer's order, for sentences.
    """
    if not hasattr(optimizer, "names_in_sentences"):
        optimizer.register_load_state_dict_pre_hook(
            lambda own, state: check_state(own, state, own.names_in_sentences())  # type: ignore[attr-defined]
        )
    optimizer.names_in_sentences = names  # type: ignore[attr-defined]


def check_state(optimizer: torch.optim.Optimizer, state: Mapping[str, Any], names: Sequence[str] = ()) -> None:
    """Refuse a state that does not fit the optimizer's parameters.

    Entries must be single numbers, or tensors of floating-point numbers of the parameter's shape (Adafactor's: of its
    rows or columns); all finite, and squares not negative.

    Raises:
        UserError: the sentence that names the entry and the parameter.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    try:
        indexes = [index for group in state["param_groups"] for index in group["params"]]
        entries = {index: entry for index, entry in state["state"].items() if entry is not None}  # fairscale's None
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(
            "The optimizer's state in the checkpoint must be that of one optimizer, but is not; `--reset-optimizer` "
            "starts without it."
        ) from error
    if len(indexes) != len(parameters):
        return  # torch says so
    labels = [f"parameter {i}" for i in range(len(parameters))] if len(names) != len(parameters) else list(names)
    required = ADAM if isinstance(optimizer, Adam) else ()
    for index, parameter, label in zip(indexes, parameters, labels, strict=True):
        if index in entries:
            _check_entry(label, entries[index], parameter.shape, required)


def _check_entry(label: str, entry: Any, shape: torch.Size, required: Sequence[str]) -> None:
    if not isinstance(entry, Mapping):
        _refuse(label, "a state", "values by name", type(entry).__name__)
    for name in required if entry else ():
        if entry.get(name) is None:
            _refuse(label, name, "there", "missing")
    for name, value in entry.items():
        if value is not None:  # as the momentum of an optimizer that has none
            _check_value(label, str(name), value, shape)


def _check_value(label: str, name: str, value: Any, shape: torch.Size) -> None:
    if torch.is_tensor(value) and value.dim():
        if value.shape != _shape_of(name, shape):
            _refuse(label, name, f"of the shape {tuple(_shape_of(name, shape))}", str(tuple(value.shape)))
        if not value.is_floating_point() or value.layout != torch.strided:
            _refuse(label, name, "of floating-point numbers", str(value.dtype).removeprefix("torch."))
    elif name in ADAM[1:] and not (torch.is_tensor(value) and value.shape == shape):
        _refuse(label, name, f"of the shape {tuple(shape)}", "a single number" if _is_number(value) else "no tensor")
    elif not _is_number(value):
        _refuse(label, name, "a tensor or a number", type(value).__name__)
    low, high = _range(value)
    if not (math.isfinite(low) and math.isfinite(high)):
        _refuse(label, name, "finite", "not finite")
    if name in NEVER_NEGATIVE and low < 0:
        _refuse(label, name, "nowhere below 0", f"{low:g} somewhere")


def _shape_of(name: str, shape: torch.Size) -> torch.Size:
    """The shape of what an optimizer has under a name for a parameter of `shape`."""
    if name == "exp_avg_sq_row":
        return shape[:-1]
    return shape[:-2] + shape[-1:] if name == "exp_avg_sq_col" else shape


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (torch.is_tensor(value) and value.dim() == 0 and not value.is_complex())


def _range(value: Tensor | float) -> tuple[float, float]:
    """The lowest and the highest number, NaN where one is; 0 of nothing."""
    if not torch.is_tensor(value):
        return float(value), float(value)
    if not value.numel():
        return 0.0, 0.0
    low, high = value.detach().aminmax()
    return float(low), float(high)


def _refuse(label: str, name: str, rule: str, found: str) -> NoReturn:
    raise UserError(
        f"`{name}` of `{label}` in the optimizer's state must be {rule}, but is {found} instead; `--reset-optimizer` "
        "starts without that state."
    )
