"""A training loop without a trainer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.moe import remember_prices, running_prices


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
