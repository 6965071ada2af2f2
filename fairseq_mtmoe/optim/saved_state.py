"""An optimizer's saved state by parameter name, and back into the layouts that fairseq saves.

fairseq saves what torch's optimizers save, `{"state": {index: entry}, "param_groups": [...]}`, with an entry such as
`{"step": 7, "exp_avg": …, "exp_avg_sq": …}` per parameter. With `--fp16` there is one entry instead, over one vector
that strings all trained parameters together in their order: the *flat* layout. Here both become a dict from a
parameter's name to its entry, whose tensors have the parameter's shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.errors import UserError

Entry = dict[str, Any]
NamedState = dict[str, Entry]
Parameters = Sequence[tuple[str, Sequence[int]]]  # names and shapes, in the optimizer's order


def has_shape(entry: Mapping[str, Any], shape: Sequence[int]) -> bool:
    """Whether all that an optimizer knows of a parameter are numbers and tensors of its shape; not so in Adafactor."""
    allowed = (torch.Size(shape), torch.Size())
    return all(value.shape in allowed for value in entry.values() if torch.is_tensor(value))


def map_tensors(entry: Mapping[str, Any], shape: Sequence[int], change: Callable[[Tensor], Tensor]) -> Entry:
    """`entry` with `change` applied to the tensors that have the parameter's shape; numbers stay as they are."""
    size = torch.Size(shape)
    return {
        key: change(value) if torch.is_tensor(value) and value.shape == size else value for key, value in entry.items()
    }


def by_name(saved: Mapping[str, Any], parameters: Parameters) -> NamedState:
    """The entries of a saved optimizer state of either layout; those of the flat one are views of its vectors.

    Raises:
        UserError: the state is not of these parameters.
    """
    indexes = _indexes(saved)
    if is_flat(saved, parameters):
        return cut_flat(saved["state"].get(indexes[0], {}), parameters)
    if len(indexes) != len(parameters):
        raise UserError(
            f"The optimizer's state in the checkpoint must be of the {len(parameters)} parameters that are trained, "
            f"but is of {len(indexes)}; `--reset-optimizer` starts without it."
        )
    state = saved["state"]
    return {name: dict(state[index]) for index, (name, _) in zip(indexes, parameters, strict=True) if index in state}


def is_flat(saved: Mapping[str, Any], parameters: Parameters) -> bool:
    """Whether a saved optimizer state has one vector for all of `parameters`."""
    return len(_indexes(saved)) == 1 and len(parameters) != 1


def saved_state(named: NamedState, header: Mapping[str, Any], parameters: Parameters, flat: bool) -> dict[str, Any]:
    """The state to save or to load, in the layout that is asked for; `header` is a state to take all else from."""
    if flat:
        entry = join_flat(named, parameters)
        entries: dict[int, Entry] = {0: entry} if entry else {}
    else:
        entries = {index: named[name] for index, (name, _) in enumerate(parameters) if name in named}
    return {**header, "state": entries, "param_groups": _groups(header, 1 if flat else len(parameters))}


def cut_flat(entry: Mapping[str, Any], parameters: Parameters) -> NamedState:
    """One entry over all parameters as one entry for each, whose tensors are views.

    Raises:
        UserError: the vectors are not of these parameters.
    """
    total = sum(math.prod(shape) for _, shape in parameters)
    if not has_shape(entry, (total,)):
        raise UserError(
            f"The optimizer's state in the checkpoint must be of the {total} numbers that are trained, but is of "
            "others; `--reset-optimizer` starts without it."
        )
    named: NamedState = {}
    offset = 0
    for name, shape in parameters if entry else ():
        end = offset + math.prod(shape)
        named[name] = map_tensors(entry, (total,), lambda v, o=offset, e=end, s=shape: v[o:e].view(tuple(s)))  # type: ignore[misc]
        offset = end
    return named


def join_flat(named: NamedState, parameters: Parameters) -> Entry:
    """One entry over all parameters; where a parameter has none, its part of the vectors is 0.

    Raises:
        UserError: an entry holds tensors of other shapes than its parameter's.
    """
    total = sum(math.prod(shape) for _, shape in parameters)
    vectors = _vector_keys(named, parameters)
    joined: Entry = {}
    offset = 0
    for name, shape in parameters:
        end = offset + math.prod(shape)
        for key, value in named.get(name, {}).items():
            if key not in vectors:
                joined.setdefault(key, value)
                continue
            if key not in joined:
                joined[key] = value.new_zeros(total)
            joined[key][offset:end].copy_(value.reshape(-1))
        offset = end
    return joined


def _vector_keys(named: NamedState, parameters: Parameters) -> set[str]:
    """The keys of what has a value per number of a parameter, unlike the count of updates."""
    found = set()
    for name, shape in parameters:
        entry = named.get(name, {})
        if not has_shape(entry, shape):
            raise UserError(
                f"The optimizer's state of `{name}` must have its shape to be saved in one vector, as adam's has; "
                "this optimizer needs `--fp16-no-flatten-grads`."
            )
        found |= {key for key, value in entry.items() if torch.is_tensor(value) and value.dim()}
    return found


def _indexes(saved: Mapping[str, Any]) -> list[int]:
    try:
        return [index for group in saved["param_groups"] for index in group["params"]]
    except (KeyError, TypeError) as error:
        raise UserError(
            "The optimizer's state in the checkpoint must be that of one optimizer, but has no list of parameters; "
            "`--reset-optimizer` starts without it."
        ) from error


def _groups(header: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The groups' options, for `count` parameters."""
    groups = [dict(group) for group in header["param_groups"]]
    if len(groups) == 1:
        groups[0]["params"] = list(range(count))
    elif len(_indexes(header)) != count:
        raise UserError("An optimizer with several groups of parameters must keep them, but they changed.")
    return groups
