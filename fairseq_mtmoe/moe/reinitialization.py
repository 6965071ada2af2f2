"""Part of each copied expert drawn anew, so that copies specialise: Drop-Upcycling (Nakamura et al. 2025, §3).

Copies of one dense layer begin with the same gradients but for their tokens, and stay alike for long. Here each of them
loses some inner units of the layer, other ones than its neighbours, and keeps the rest of what the layer had learned.
The paper's layers have no biases: that of an inner unit is drawn with the unit, that of the output stays.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_mtmoe.moe.experts import ExpertBank


@torch.no_grad()
def reinitialize_(bank: ExpertBank, ratio: float) -> None:
    """Draw a share of the inner units of every expert anew, and note in `bank.reinitialized` which.

    Of each expert, ⌊ratio·F⌋ units are chosen at random; then their rows of the first map, their biases and their
    columns of the second map are drawn from three normal distributions, with mean and standard deviation of what each
    replaces. A bank's own seed decides: an expert gets the same whatever others its process holds, and a model's gates
    are the same at every ratio.

    Args:
        bank: on a CPU, copies of a dense layer.
        ratio: r, from 0 to 1.
    """
    count, inner_size, _ = bank.fc1_weight.shape
    size = int(ratio * inner_size)
    if size == 0:
        return
    bank.reinitialized = torch.zeros(count, inner_size, dtype=torch.bool, device="cpu")
    for index in range(count):
        generator = bank.generator(bank.placement.first + index)
        units = torch.randperm(inner_size, generator=generator, device="cpu")[:size]
        bank.reinitialized[index, units] = True
        for part in (bank.fc1_weight[index], bank.fc1_bias[index], bank.fc2_weight[index].t()):
            part[units] = _like(part[units], generator)


def _like(values: Tensor, generator: torch.Generator) -> Tensor:
    """As many numbers from the normal distribution with their mean and standard deviation."""
    drawn = torch.randn(values.shape, generator=generator, device="cpu").to(values)
    return values.mean() + values.std(correction=0) * drawn
