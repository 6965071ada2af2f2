"""What the shared battery asks of a system: one `System` is one of its rows."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tests.systems import rows

Batch = dict[str, Any]


@dataclass(frozen=True)
class System:
    """A system in one set of options.

    Attributes:
        name: of the row.
        build: a model in evaluation mode, from a seed; with everything that the system adds in place.
        dense_twin: the model that the system is without its additions, in evaluation mode.
        of_dense: the system's model with the twin's weights, in which whatever it adds changes nothing: one expert, a
            gate value of one, a conditional part at its identity.
        batch: some sentences of several tasks, alike at each call.
        output: what a model says at the batch's real positions.
        loss: what training lowers: a task that the model can learn in some 60 updates.
        trainable: whether a parameter of this name trains, in the system's way of training a part of the model.
    """

    name: str
    build: Callable[[int], nn.Module]
    dense_twin: Callable[[], nn.Module]
    of_dense: Callable[[nn.Module], nn.Module]
    batch: Callable[[], Batch]
    output: Callable[[nn.Module, Batch], Tensor]
    loss: Callable[[nn.Module, Batch], Tensor]
    trainable: Callable[[str], bool]


def all_systems() -> list[System]:
    """The rows of all modules in `rows/`."""
    modules = [
        importlib.import_module(f"{rows.__name__}.{found.name}") for found in pkgutil.iter_modules(rows.__path__)
    ]
    return [row for module in modules for row in module.ROWS]
