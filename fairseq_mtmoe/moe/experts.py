"""Experts: N feed-forward networks with stacked weights.

The expert `E(x) = W2 · dropout(activation(W1 x + b1)) + b2` of both "Tricks for Training Sparse Translation Models" and
MT-TaG is a transformer's feed-forward layer, without the norm and residual connection of its block.

`SharedExpert` is an additional network for all tokens: `y = scale · E_e(x) + S(x)`. As in DeepSeekMoE (Dai et al. 2024,
§3.2), the units of a dense layer are divided between the two, so that the cost per token stays the same. Residual MoE
(Rajbhandari et al. 2022, §4.1) is the same with networks of equal size.
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
from fairseq_mtmoe.moe.stacked import StackedBank, check_count, draw_linear_


class ExpertBank(StackedBank):
    """N independent feed-forward networks, or the part of them that one rank holds.

    Args:
        num_experts: N, at least 1, over all ranks.
        hidden_size: H, the width of inputs and outputs.
        inner_size: F, the width between the two linear maps.
        activation: applied to the inner tensor.
        dropout: probability of dropping inner activations in training.
        placement: the experts of this rank, by default all. Parameters of sharded experts have fairseq's attribute
            `expert`.
        draws: initialize the parameters; otherwise `copy_dense_` must set them.

    Attributes:
        reinitialized: mask of the inner units that `reinitialize_` has changed, (count, F), or None.
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
        """Initialize every expert separately, as fairseq's feed-forward layer."""
        for index in range(self.placement.count):
            generator = self.generator(self.placement.first + index)
            draw_linear_(self.fc1_weight[index], self.fc1_bias[index], generator)
            draw_linear_(self.fc2_weight[index], self.fc2_bias[index], generator)

    @torch.no_grad()
    def copy_dense_(self, fc1_weight: Tensor, fc1_bias: Tensor, fc2_weight: Tensor, fc2_bias: Tensor) -> None:
        """Copy a dense layer into every expert: (F, H), (F,), (H, F), (H,)."""
        self.fc1_weight.copy_(fc1_weight)
        self.fc1_bias.copy_(fc1_bias)
        self.fc2_weight.copy_(fc2_weight)
        self.fc2_bias.copy_(fc2_bias)

    def reinitialized_part(self, name: str) -> Tensor | None:
        """Return the mask of a parameter's re-initialized numbers, broadcastable, or None."""
        if self.reinitialized is None or name == "fc2_bias":
            return None
        mask_NF = self.reinitialized.to(self.fc1_weight.device)
        return {"fc1_weight": mask_NF.unsqueeze(2), "fc1_bias": mask_NF, "fc2_weight": mask_NF.unsqueeze(1)}[name]

    def forward(
        self, rows_TH: Tensor, offsets_N: Tensor, max_rows: int | None = None, host_offsets_N: Tensor | None = None
    ) -> Tensor:
        """Return the experts' outputs for their rows, (T, H); 0 in rows without an expert.

        See `DispatchPlan` for the arguments.
        """
        if host_offsets_N is not None and operators.reads_offsets(rows_TH, self.fc1_weight, max_rows):
            offsets_N = host_offsets_N
        drops = self.training and self.dropout > 0
        if self.activation in ACTIVATIONS and not drops:
            weights = (self.fc1_weight, self.fc1_bias, self.fc2_weight, self.fc2_bias)
            return grouped_network(self.activation, rows_TH, offsets_N, *weights, self.gradient_buffers, max_rows)
        offsets_N = operators.offsets_at_hand(offsets_N, rows_TH, self.fc1_weight, max_rows)  # once for both products
        inner = self.activation(grouped_linear(rows_TH, offsets_N, self.fc1_weight, self.fc1_bias, max_rows))
        inner = F.dropout(inner, self.dropout, self.training)
        return grouped_linear(inner, offsets_N, self.fc2_weight, self.fc2_bias, max_rows)

    def train(self, mode: bool = True) -> ExpertBank:
        """Set the mode; evaluation frees the gradient buffers."""
        if not mode:
            self.gradient_buffers.clear()
        return super().train(mode)

    def extra_repr(self) -> str:
        count, inner_size, hidden_size = self.fc1_weight.shape
        first = self.placement.first
        here = "" if count == self.num_experts else f", here={first}-{first + count - 1}"
        sizes = f"hidden_size={hidden_size}, inner_size={inner_size}, dropout={self.dropout}"
        return f"num_experts={self.num_experts}{here}, {sizes}"


UNITS = {"fc1_weight": 0, "fc1_bias": 0, "fc2_weight": 1}  # dimension of the inner units


class SharedExpert(nn.Module):
    """A feed-forward network of D inner units for all tokens, without output bias."""

    def __init__(
        self, hidden_size: int, inner_size: int, activation: Callable[[Tensor], Tensor] = F.relu, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.inner_size = inner_size
        self.activation = activation
        self.dropout = dropout
        self.fc1_weight = nn.Parameter(torch.empty(inner_size, hidden_size))
        self.fc1_bias = nn.Parameter(torch.empty(inner_size))
        self.fc2_weight = nn.Parameter(torch.empty(hidden_size, inner_size))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize the parameters as fairseq's feed-forward layer."""
        draw_linear_(self.fc1_weight, self.fc1_bias)
        draw_linear_(self.fc2_weight)

    def forward(self, x_TH: Tensor) -> Tensor:
        """Return the output of every token, (T, H) to (T, H)."""
        inner_TD = self.activation(F.linear(x_TH, self.fc1_weight, self.fc1_bias))
        return F.linear(F.dropout(inner_TD, self.dropout, self.training), self.fc2_weight)

    def extra_repr(self) -> str:
        return f"hidden_size={len(self.fc2_weight)}, inner_size={self.inner_size}, dropout={self.dropout}"


def own_part(name: str, value: Tensor, shared_size: int) -> Tensor:
    """Return an expert's part of a parameter: all but the last `shared_size` units."""
    return value if name not in UNITS else value.narrow(UNITS[name], 0, value.shape[UNITS[name]] - shared_size)


def shared_part(name: str, value: Tensor, shared_size: int) -> Tensor:
    """Return the shared expert's part of a parameter: the last `shared_size` units.

    The output's bias has no such part.
    """
    return value.narrow(UNITS[name], value.shape[UNITS[name]] - shared_size, shared_size)


@torch.no_grad()
def reinitialize_(bank: ExpertBank, ratio: float) -> None:
    """Re-initialize a fraction of experts' inner units, so that copies specialise.

    Drop-Upcycling (Nakamura et al. 2025, §3): rows of the first map, biases and columns of the second map of ⌊r·F⌋
    units are drawn from normal distributions with the mean and standard deviation of the values they replace. They
    depend on the bank's seed, not on the rank. `bank.reinitialized` marks the units. The `bank` is on a CPU.
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
            replaced = part[units]
            drawn = torch.randn(replaced.shape, generator=generator, device="cpu").to(replaced)
            part[units] = replaced.mean() + replaced.std(correction=0) * drawn
