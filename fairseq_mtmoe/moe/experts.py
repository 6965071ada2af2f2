"""What experts compute: N feed-forward networks with stacked weights.

The expert `E(x) = W2 · dropout(activation(W1 x + b1)) + b2` of both "Tricks for Training Sparse Translation Models" and
MT-TaG is a transformer's feed-forward layer. Its norm and its residual connection belong to the block around it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.moe.grouped_matmul.gradient_buffers import GradientBufferPool
from fairseq_mtmoe.moe.grouped_matmul.operators import (
    ACTIVATIONS,
    ends_at_hand,
    grouped_linear,
    grouped_network,
    takes_host_ends,
)
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.moe.stacked import StackedBank, check_count, draw_linear_


class ExpertBank(StackedBank):
    """N independent feed-forward networks, or those of them that one process holds.

    Args:
        num_experts: N, at least 1, in all processes together.
        hidden_size: H, the width of inputs and outputs.
        inner_size: F, the width between the two linear maps.
        activation: applied to the inner tensor.
        dropout: probability with which inner values are dropped in training.
        placement: which of them this process holds; all by default. Parameters that other processes do not have carry
            fairseq's mark `expert`.
        draws: draw the parameters; otherwise they wait for `copy_dense_`.

    Attributes:
        reinitialized: which inner units of these experts `reinitialize_` has drawn anew, (count, F); None without.

    Raises:
        UserError: `num_experts` is not positive.
    """

    def __init__(
        self,
        num_experts: int,
        hidden_size: int,
        inner_size: int,
        activation: Callable[[Tensor], Tensor] = F.relu,
        dropout: float = 0.0,
        placement: ExpertPlacement | None = None,
        draws: bool = True,
    ) -> None:
        super().__init__()
        check_count("num_experts", num_experts)
        self.num_experts = num_experts
        self.placement = placement if placement is not None else ExpertPlacement(num_experts, 0, num_experts)
        assert self.placement.num_experts == num_experts
        self.activation = activation
        self.dropout = dropout
        count = self.placement.count
        self.fc1_weight = nn.Parameter(torch.empty(count, inner_size, hidden_size))
        self.fc1_bias = nn.Parameter(torch.empty(count, inner_size))
        self.fc2_weight = nn.Parameter(torch.empty(count, hidden_size, inner_size))
        self.fc2_bias = nn.Parameter(torch.empty(count, hidden_size))
        if self.placement.is_sharded:
            for parameter in self.parameters():
                parameter.expert = True  # type: ignore[attr-defined]
        self.gradient_buffers = GradientBufferPool()
        self.reinitialized: Tensor | None = None
        if draws:
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw every expert, independently: weights and biases as fairseq's feed-forward layer has them."""
        for index in range(self.placement.count):
            generator = self.generator(self.placement.first + index)
            draw_linear_(self.fc1_weight[index], self.fc1_bias[index], generator)
            draw_linear_(self.fc2_weight[index], self.fc2_bias[index], generator)

    @torch.no_grad()
    def copy_dense_(self, fc1_weight: Tensor, fc1_bias: Tensor, fc2_weight: Tensor, fc2_bias: Tensor) -> None:
        """Make every expert a copy of one dense feed-forward layer: (F, H), (F,), (H, F), (H,)."""
        self.fc1_weight.copy_(fc1_weight)
        self.fc1_bias.copy_(fc1_bias)
        self.fc2_weight.copy_(fc2_weight)
        self.fc2_bias.copy_(fc2_bias)

    def reinitialized_part(self, name: str) -> Tensor | None:
        """Which numbers of a parameter were drawn anew, in a shape that broadcasts to its own; None: none of them."""
        if self.reinitialized is None or name == "fc2_bias":
            return None
        mask_NF = self.reinitialized.to(self.fc1_weight.device)
        return {"fc1_weight": mask_NF.unsqueeze(2), "fc1_bias": mask_NF, "fc2_weight": mask_NF.unsqueeze(1)}[name]

    def forward(
        self, rows_TH: Tensor, ends_N: Tensor, most: int | None = None, host_ends_N: Tensor | None = None
    ) -> Tensor:
        """Each of this process's experts on its own rows, as a dispatcher sorted them: (T, H), 0 in rows of no expert.

        The other arguments are as in `DispatchPlan`.
        """
        if host_ends_N is not None and takes_host_ends(rows_TH, self.fc1_weight, most):
            ends_N = host_ends_N
        drops = self.training and self.dropout > 0
        if self.activation in ACTIVATIONS and not drops:
            weights = (self.fc1_weight, self.fc1_bias, self.fc2_weight, self.fc2_bias)
            return grouped_network(self.activation, rows_TH, ends_N, *weights, self.gradient_buffers, most)
        ends_N = ends_at_hand(ends_N, rows_TH, self.fc1_weight, most)  # once for both products
        inner = self.activation(grouped_linear(rows_TH, ends_N, self.fc1_weight, self.fc1_bias, most))
        inner = F.dropout(inner, self.dropout, self.training)
        return grouped_linear(inner, ends_N, self.fc2_weight, self.fc2_bias, most)

    def train(self, mode: bool = True) -> ExpertBank:
        """As a module's; evaluation has no use for the memory of gradients."""
        if not mode:
            self.gradient_buffers.clear()
        return super().train(mode)

    def extra_repr(self) -> str:
        """The sizes, for printing a model."""
        count, inner_size, hidden_size = self.fc1_weight.shape
        here = "" if count == self.num_experts else f", here={self.placement.first}-{self.placement.first + count - 1}"
        sizes = f"num_experts={self.num_experts}{here}, hidden_size={hidden_size}, inner_size={inner_size}"
        return f"{sizes}, dropout={self.dropout}"
