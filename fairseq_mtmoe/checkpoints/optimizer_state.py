"""An optimizer's state by parameter name.

It is read from and written to optimizers and checkpoints.
fairseq's Adam updates the model's parameters, or float32 copies of half-precision ones ("masters"),
separate or in one vector. A checkpoint has `{"state": {index: entry}, "param_groups": [...]}`, with
an entry such as `{"step": 7, "exp_avg": …}` per parameter. With `--fp16` it has one entry over the
vector of all parameters, the *flat* layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from fairseq_mtmoe.core.errors import UserError

Entry = dict[str, Any]
Parameters = Sequence[tuple[str, Sequence[int]]]  # names and shapes, in the optimizer's order

MASTER = "master"  # key of the float32 copy of a half-precision parameter
_RESET = "`--reset-optimizer` starts without that state."
_ADAM = ("step", "exp_avg", "exp_avg_sq")


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters that fairseq gives to the optimizer, in its order."""
    return [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]


def shapes_of(parameters: Iterable[tuple[str, Tensor]]) -> Parameters:
    """Return names and shapes of parameters."""
    return [(name, parameter.shape) for name, parameter in parameters]


class OptimizerState(dict[str, Entry]):
    """Entries by parameter name: tensors of its shape, and numbers such as `step`."""

    @classmethod
    def from_saved(cls, saved: Mapping[str, Any], parameters: Parameters) -> OptimizerState:
        """Return a checkpoint's state of these parameters, from either layout (UserError).

        From the flat layout, tensors are views.
        """
        indexes = _indexes(saved)
        if is_flat(saved, parameters):
            return cls(_cut(saved["state"].get(indexes[0], {}), parameters))
        if len(indexes) != len(parameters):
            raise UserError(
                f"The optimizer's state in the checkpoint must have the {len(parameters)} "
                f"parameters that are trained, but has {len(indexes)}; {_RESET}"
            )
        state = cls()
        for index, (name, _) in zip(indexes, parameters, strict=True):
            entry = saved["state"].get(index)
            if entry is not None:
                state[name] = dict(entry)
        return state

    @classmethod
    def capture(
        cls, optimizer: Any, parameters: Sequence[tuple[str, nn.Parameter]]
    ) -> OptimizerState:
        """Return the state of a fairseq optimizer (UserError: it has other parameters)."""
        inner = optimizer.optimizer
        shapes = shapes_of(parameters)
        if len(inner.param_groups) != 1:
            raise UserError("`--dense-updates` requires an `--optimizer` with one parameter group.")
        # The masters are None in full precision, one of each parameter (a list), or one vector of
        # all parameters by device (a dict).
        masters = getattr(optimizer, "fp32_params", None)
        if isinstance(masters, dict):
            (vector,) = masters.values()
            return cls(_cut({MASTER: vector.data, **inner.state.get(vector, {})}, shapes))
        held = inner.param_groups[0]["params"] if masters is None else masters
        if len(held) != len(parameters):
            raise UserError(
                "`--dense-updates` cannot be combined with a criterion that has parameters."
            )
        state = cls()
        for (name, _), value in zip(parameters, held, strict=True):
            master = {} if masters is None else {MASTER: value.data}
            state[name] = master | inner.state.get(value, {})
        if state.misfit(shapes) is not None:
            raise UserError(
                "`--dense-updates` requires an `--optimizer` whose state has the shapes of the "
                "parameters, such as adam."
            )
        return state

    def misfit(self, parameters: Parameters) -> str | None:
        """Return the first parameter whose entry has another shape, or None.

        Adafactor has such entries.
        """
        for name, shape in parameters:
            if not _has_shape(self.get(name, {}), shape):
                return name
        return None

    def to_saved(
        self, header: Mapping[str, Any], parameters: Parameters, flat: bool
    ) -> dict[str, Any]:
        """Return the state to save or load, flat or not; `header` has all else."""
        if flat:
            entry = _join(self, parameters)
            entries: dict[int, Entry] = {0: entry} if entry else {}
        else:
            entries = {
                index: self[name] for index, (name, _) in enumerate(parameters) if name in self
            }
        groups = list(map(dict, header["param_groups"]))
        count = 1 if flat else len(parameters)
        if len(groups) == 1:
            groups[0]["params"] = list(range(count))
        elif len(_indexes(header)) != count:
            raise UserError(
                "An optimizer with several parameter groups must keep its parameters, but they "
                "changed."
            )
        return {**header, "state": entries, "param_groups": groups}

    def restore(self, optimizer: Any, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Replace a fairseq optimizer's parameters by these, with their entries."""
        inner = optimizer.optimizer
        masters = getattr(optimizer, "fp32_params", None)
        held: list[Tensor] = [parameter for _, parameter in parameters]
        shapes = shapes_of(parameters)
        entries = [self.get(name, {}) for name, _ in parameters]
        if masters is not None:
            flat = isinstance(masters, dict)
            optimizer.fp16_params = held
            optimizer.fp32_params = type(optimizer).build_fp32_params(None, held, flatten=flat)
            held = optimizer.fp32_params
            if flat:
                held = list(optimizer.fp32_params.values())
                state = OptimizerState(_cut({MASTER: held[0].data}, shapes))
                for name, entry in state.items():
                    entry.update(self.get(name, {}))
                entries = [_join(state, shapes)]
        inner.state.clear()
        inner.param_groups[0]["params"] = list(held)
        for value, entry in zip(held, entries, strict=True):
            moments = dict(entry)
            if masters is not None:
                value.data.copy_(moments.pop(MASTER, value.data))
            if moments:
                # A fused kernel would write beyond a smaller tensor.
                assert _has_shape(moments, value.shape)
                inner.state[value] = moments


def is_flat(saved: Mapping[str, Any], parameters: Parameters) -> bool:
    """Return whether a saved optimizer state has one vector for all `parameters`."""
    return len(_indexes(saved)) == 1 and len(parameters) != 1


def _has_shape(entry: Mapping[str, Any], shape: Sequence[int]) -> bool:
    allowed = (torch.Size(shape), torch.Size())
    return all(value.shape in allowed for value in entry.values() if torch.is_tensor(value))


def map_entry(
    entry: Mapping[str, Any], shape: Sequence[int], change: Callable[[Tensor], Tensor]
) -> Entry:
    """Return an entry with `change` applied to the tensors of the parameter's shape."""
    size = torch.Size(shape)
    mapped = dict(entry)
    for key, value in entry.items():
        if torch.is_tensor(value) and value.shape == size:
            mapped[key] = change(value)
    return mapped


def _spans(parameters: Parameters) -> Iterator[tuple[str, torch.Size, slice]]:
    """Yield each parameter's name, shape and slice of the vector of all parameters."""
    offset = 0
    for name, shape in parameters:
        end = offset + math.prod(shape)
        yield name, torch.Size(shape), slice(offset, end)
        offset = end


def _cut(entry: Mapping[str, Any], parameters: Parameters) -> dict[str, Entry]:
    """Split an entry over all parameters into views, one entry per parameter."""
    total = sum(math.prod(shape) for _, shape in parameters)
    if not _has_shape(entry, (total,)):
        raise UserError(
            f"The optimizer's state in the checkpoint must have the shape of the {total} numbers "
            f"that are trained, but has another; {_RESET}"
        )
    if not entry:
        return {}
    return {
        name: map_entry(
            entry,
            (total,),
            lambda vector, at=span, shape=shape: vector[at].view(shape),  # type: ignore[misc]
        )
        for name, shape, span in _spans(parameters)
    }


def _join(named: Mapping[str, Entry], parameters: Parameters) -> Entry:
    """Join entries to one over all parameters, with zeros for parameters without one."""
    for name, shape in parameters:
        if not _has_shape(named.get(name, {}), shape):
            raise UserError(
                f"The optimizer's state of `{name}` must have the parameter's shape, as in adam, "
                "to be saved in one vector; use `--fp16-no-flatten-grads` with this optimizer."
            )
    # The number of updates may be a tensor without dimension; a moment of one number has one.
    values = [(key, value) for name, _ in parameters for key, value in named.get(name, {}).items()]
    vectors = {key for key, value in values if torch.is_tensor(value) and value.dim()}
    joined: Entry = {key: value for key, value in reversed(values) if key not in vectors}
    total = sum(math.prod(shape) for _, shape in parameters)
    for name, _, span in _spans(parameters):
        for key, value in named.get(name, {}).items():
            if key in vectors:
                joined.setdefault(key, value.new_zeros(total))[span].copy_(value.reshape(-1))
    return joined


def _indexes(saved: Mapping[str, Any]) -> list[int]:
    try:
        return [index for group in saved["param_groups"] for index in group["params"]]
    except (KeyError, TypeError) as error:
        sentence = (
            "The optimizer's state in the checkpoint must be that of a single optimizer, but is "
            f"not; {_RESET}"
        )
        raise UserError(sentence) from error


# ---- checks of a file's state before it is loaded ----


def check_when_loading(
    optimizer: torch.optim.Optimizer, names: Callable[[], Sequence[str]] = tuple
) -> None:
    """Make a torch optimizer check every state that it loads.

    torch's fused kernels write as many numbers as the parameter has, whatever the moment's size.
    names: returns the parameters' names for errors.
    """
    if not hasattr(optimizer, "names_in_sentences"):
        optimizer.register_load_state_dict_pre_hook(
            lambda loading, state: check_state(
                loading,
                state,
                loading.names_in_sentences(),  # type: ignore[attr-defined]
            )
        )
    optimizer.names_in_sentences = names  # type: ignore[attr-defined]


def check_state(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any], names: Sequence[str] = ()
) -> None:
    """Raise a `UserError` if a state does not fit the optimizer's parameters.

    Entries must be single numbers, or floating-point tensors of the parameter's shape (in
    Adafactor: of its rows or columns). The message names the entry and the parameter.
    """
    from fairseq.optim.adam import Adam

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    indexes = _indexes(state)
    if len(indexes) != len(parameters):
        return  # torch raises
    labels = names
    if len(names) != len(parameters):
        labels = [f"parameter {i}" for i in range(len(parameters))]
    for index, parameter, label in zip(indexes, parameters, labels, strict=True):
        entry = state["state"].get(index)
        if not entry:  # fairscale's None, or nothing yet
            continue
        needed = _ADAM if isinstance(optimizer, Adam) else ()
        for name in needed:
            if entry.get(name) is None:
                _refuse(label, name, "there", "missing")
        for name, value in entry.items():
            if value is not None:  # such as the momentum of an optimizer without momentum
                _check_value(label, str(name), value, parameter.shape)


def _check_value(label: str, name: str, value: Any, shape: torch.Size) -> None:
    is_real_tensor = torch.is_tensor(value) and not value.is_complex()
    is_number = isinstance(value, int | float) or is_real_tensor
    if torch.is_tensor(value) and (value.dim() or name in _ADAM[1:]):
        factors = {"exp_avg_sq_row": shape[:-1], "exp_avg_sq_col": shape[:-2] + shape[-1:]}
        wanted = factors.get(name, shape)
        if value.shape != wanted:
            _refuse(label, name, f"of the shape {tuple(wanted)}", str(tuple(value.shape)))
        if not value.is_floating_point() or value.layout != torch.strided:
            _refuse(
                label, name, "of floating-point numbers", str(value.dtype).removeprefix("torch.")
            )
    elif name in _ADAM[1:] or not is_number:
        _refuse(label, name, "a tensor or a number", type(value).__name__)


def _refuse(label: str, name: str, rule: str, value: str) -> NoReturn:
    raise UserError(
        f"`{name}` of `{label}` in the optimizer's state must be {rule}, but is {value} instead; "
        f"{_RESET}"
    )
