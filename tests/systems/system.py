"""What the shared battery asks of a system, one `System` for each of its rows; and what several rows need."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.moe import remember_prices, running_prices
from fairseq_mtmoe.slots import expert_layers
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
    names = [found.name for found in pkgutil.iter_modules(rows.__path__)]
    return [row for name in names for row in importlib.import_module(f"{rows.__name__}.{name}").ROWS]


def train(
    model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], net_input: Any, updates: int, enough: float = 0.0
) -> float:
    """So many updates on one batch with Adam, or until the loss is low enough; returns the last loss."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.005)
    model.train()
    value = torch.zeros(())
    for _ in range(updates):
        optimizer.zero_grad()
        value = loss(model, net_input)
        value.backward()
        optimizer.step()
        remember_prices(running_prices(model))
        if value.item() < enough:
            break
    return value.item()


def with_weights_of(dense: nn.Module, model: nn.Module) -> nn.Module:
    model.load_state_dict(dense.state_dict())
    return model


def with_experts_of(dense: nn.Module, model: nn.Module) -> nn.Module:
    """A model of one expert per layer that has become a copy of a dense one; a gate of the paper's combine is at 1."""
    with_weights_of(dense, model).sparsify()
    for layer in expert_layers(model).values():
        if layer.gate.is_learned:
            nn.init.normal_(layer.gate.weight)  # what it says must not matter
        if layer.blend is None:
            layer.gate.register_forward_hook(_with_gates_at_one)
    return model


def _with_gates_at_one(gate, inputs, routing):
    return dataclasses.replace(routing, gate_T=torch.ones_like(routing.gate_T))
