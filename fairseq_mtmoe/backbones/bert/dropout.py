"""Dropout that costs little on a CPU, where torch draws a double of 53 random bits to drop one number.

Here a number has 16 random bits: its probability is a multiple of 1/65536, and what is kept is scaled by exactly that.
BERT drops numbers in 2·blocks + 1 places and in all attention weights: with torch's own draws that is a tenth of the
time of an update.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_VALUES = 1 << 16
_PER_DRAW = 4  # numbers of 16 bits in one of 64


class Dropout(nn.Module):
    """As `nn.Dropout`."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Shaped as `x`."""
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        """The probability, for printing a model."""
        return f"p={self.p}"


def dropout(x: Tensor, p: float) -> Tensor:
    """`x` with each number zero with probability `p`, else scaled so that its expectation stays."""
    if p == 0:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():  # there the draws are made in the same pass
        return F.dropout(x, p)
    return x * dropout_scales(x, p)


def dropout_scales(x: Tensor, p: float) -> Tensor:
    """What a CPU multiplies `x` with: with probability `p` 0."""
    dropped = min(round(p * _VALUES), _VALUES - 1)  # of all values of 16 bits
    draws = torch.empty(-(-x.numel() // _PER_DRAW), dtype=torch.int64).random_(-(1 << 63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    kept = bits >= dropped - _VALUES // 2
    return kept.to(x.dtype).mul_(_VALUES / (_VALUES - dropped))
