"""What banks of experts and of adapters have in common: the first dimension of every parameter says whose it is."""

from __future__ import annotations

import math

from torch import Tensor, nn

from fairseq_mtmoe.errors import must_be


class StackedBank(nn.Module):
    """Members of one form with stacked parameters. A subclass makes the parameters."""

    def member(self, index: int) -> dict[str, Tensor]:
        """One member's parameters by name, as views."""
        return {name: parameter[index] for name, parameter in self.named_parameters(recurse=False)}


def check_count(name: str, count: int) -> None:
    """Raise the `UserError` that names a number of members below 1."""
    if count < 1:
        must_be(name, "at least 1", count)


def draw_linear_(weight_OI: Tensor, bias_O: Tensor | None = None) -> None:
    """Draw one linear map as `nn.Linear` does, uniform within ±1/√I; without gradients."""
    bound = 1 / math.sqrt(weight_OI.shape[1])
    nn.init.uniform_(weight_OI, -bound, bound)
    if bias_O is not None:
        nn.init.uniform_(bias_O, -bound, bound)
