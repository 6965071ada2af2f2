"""Losses beside the task's own: Switch's load-balancing loss, collected from a model's expert layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fairseq_mtmoe.moe.layer import MoELayer


def balance_loss(module: nn.Module) -> Tensor:
    """The sum of the load-balancing losses of the last forward pass, a float32 number; 0 where no gate defines one.

    Each layer adds 1 when its load is even, up to N when one expert gets everything. Its loss is taken away from it: a
    layer that the next pass leaves out (layerdrop) must not hand in the same graph again.
    """
    losses = []
    for layer in module.modules():
        if isinstance(layer, MoELayer) and layer.last_balance_loss is not None:
            losses.append(layer.last_balance_loss)
            layer.last_balance_loss = None
    return torch.stack(losses).sum() if losses else torch.zeros(())
