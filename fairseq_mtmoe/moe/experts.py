"""Experts: N feed-forward networks with stacked weights.

The expert `E(x) = W2 · dropout(activation(W1 x + b1)) + b2` of both "Tricks for Training Sparse
Translation Models" and MT-TaG is a transformer's feed-forward layer, without the norm and
residual connection of its block.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.moe.grouped_matmul import operators
from fairseq_mtmoe.moe.grouped_matmul.gradient_buffers import GradientBufferPool
from fairseq_mtmoe.moe.grouped_matmul.operators import ACTIVATIONS, grouped_linear, grouped_network
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.moe.stacked import StackedBank, draw_linear_


class ExpertBank(StackedBank):
    """N independent feed-forward networks, or the part of them that one rank holds.

    Args:
        num_experts: N, at least 1, over all ranks.
        hidden_size: H, the width of inputs and outputs.
        inner_size: F, the width between the two linear maps.
        activation: applied to the inner tensor.
        dropout: probability of dropping inner activations in training.
        placement: the experts of this rank, by default all. Parameters of sharded experts have
            fairseq's attribute `expert`.
        draws: initialize the parameters; otherwise the caller must set them.
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
        assert num_experts >= 1
        self.num_experts = num_experts
        self.placement = placement or ExpertPlacement(num_experts, 0, num_experts)
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
        if draws:
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize every expert separately, as fairseq's feed-forward layer."""
        for index in range(self.placement.count):
            generator = self.generator(self.placement.first + index)
            draw_linear_(self.fc1_weight[index], self.fc1_bias[index], generator)
            draw_linear_(self.fc2_weight[index], self.fc2_bias[index], generator)

    def forward(
        self,
        rows_SH: Tensor,
        offsets_N: Tensor,
        max_rows: int | None = None,
        host_offsets_N: Tensor | None = None,
    ) -> Tensor:
        """Return the experts' outputs for their rows, (S, H); 0 in rows without an expert.

        See `DispatchPlan` for the arguments.
        """
        # Once for both products.
        offsets_N = operators.offsets_at_hand(
            offsets_N, rows_SH, self.fc1_weight, max_rows, host_offsets_N
        )
        drops = self.training and self.dropout > 0
        if self.activation in ACTIVATIONS and not drops:
            weights = (self.fc1_weight, self.fc1_bias, self.fc2_weight, self.fc2_bias)
            return grouped_network(
                self.activation, rows_SH, offsets_N, *weights, self.gradient_buffers, max_rows
            )
        inner = grouped_linear(rows_SH, offsets_N, self.fc1_weight, self.fc1_bias, max_rows)
        inner = F.dropout(self.activation(inner), self.dropout, self.training)
        return grouped_linear(inner, offsets_N, self.fc2_weight, self.fc2_bias, max_rows)

    def train(self, mode: bool = True) -> ExpertBank:
        """Set the mode; evaluation frees the gradient buffers."""
        if not mode:
            self.gradient_buffers.clear()
        return super().train(mode)

    def extra_repr(self) -> str:
        """Return the sizes and this rank's experts for `repr`."""
        count, inner_size, hidden_size = self.fc1_weight.shape
        first = self.placement.first
        here = "" if count == self.num_experts else f", here={first}-{first + count - 1}"
        sizes = f"hidden_size={hidden_size}, inner_size={inner_size}, dropout={self.dropout}"
        return f"num_experts={self.num_experts}{here}, {sizes}"
