"""A training loop without a trainer, and sparse models that compute what dense ones do."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.moe import remember_prices, running_prices
from fairseq_mtmoe.slots import expert_layers


def train(
    model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], net_input: Any, updates: int, lr: float = 0.005
) -> float:
    """So many updates on one batch with Adam; returns the last loss."""
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    model.train()
    value = torch.zeros(())
    for _ in range(updates):
        optimizer.zero_grad()
        value = loss(model, net_input)
        value.backward()
        optimizer.step()
        remember_prices(running_prices(model))
    return value.item()


def with_experts_of(dense: nn.Module, model: nn.Module) -> nn.Module:
    """A model of one expert per layer that has become a copy of a dense one; a gate of the paper's combine is at 1."""
    model.load_state_dict(dense.state_dict())
    model.sparsify()
    for layer in expert_layers(model).values():
        if layer.gate.is_learned:
            nn.init.normal_(layer.gate.weight)  # what it says must not matter
        if layer.blend is None:
            layer.gate.register_forward_hook(_with_gates_at_one)
    return model


def _with_gates_at_one(gate, inputs, routing):
    return dataclasses.replace(routing, gate_T=torch.ones_like(routing.gate_T))
