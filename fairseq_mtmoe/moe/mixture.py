"""PEMT's parts of a block: source adapters, their gate and the target adapter."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.moe.adapters import AdapterBank
from fairseq_mtmoe.moe.stats import MixtureWeights

TARGET_STD = 0.01  # of a target adapter's weights (the authors' code)


class MixtureGate(nn.Module):
    """A layer's gate over sources, w = softmax(W_g s) of a summary s (equation 2).

    It computes in float32; weights are equal at first.
    """

    def __init__(self, num_sources: int, summary_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_sources, summary_size))

    def forward(self, summary: Tensor) -> Tensor:
        """Return positive weights of sum 1: (d,) to (K,), (B, d) to (B, K), float32."""
        with torch.autocast(summary.device.type, enabled=False):
            return F.linear(summary.float(), self.weight.float()).softmax(-1)


class TargetAdapter(nn.Module):
    """The target task's adapter after the mixture (§3.2), y + up(gelu(down y)).

    It is initialized as in the authors' code.
    """

    def __init__(self, size: int, narrow_size: int) -> None:
        super().__init__()
        self.down = nn.Linear(size, narrow_size)
        self.up = nn.Linear(narrow_size, size)
        for linear in (self.down, self.up):
            nn.init.normal_(linear.weight, std=TARGET_STD)
            nn.init.zeros_(linear.bias)

    def forward(self, y: Tensor) -> Tensor:
        """Return y, (…, H), plus the adapter's output."""
        added: Tensor = self.up(F.gelu(self.down(y), approximate="tanh"))
        return y + added


class AdapterMixture(nn.Module):
    """The adapters of a block: one of a source task, or the mixture of a target."""

    def __init__(
        self,
        adapters: AdapterBank | None,
        gate: MixtureGate | None,
        target_adapter: TargetAdapter | None,
    ) -> None:
        super().__init__()
        assert gate is None or (adapters is not None and len(gate.weight) == adapters.num_members)
        self.adapters = adapters
        self.gate = gate
        self.target_adapter = target_adapter
        self.recorded_weights = None if gate is None else MixtureWeights(len(gate.weight))


def layer_similarity(
    cosines: Tensor, weights: Tensor, padding_mask: Tensor | None = None
) -> Tensor:
    """Return a layer's 1/K Σ_k w_k cos(H_o, E_k) (equation 5), the mean over tokens.

    `cosines` are (L, B, K), `weights` (K,) or (B, K), `padding_mask` is True at padding, (B, L).
    The result is a float32 scalar.
    """
    similarity_LB = (cosines * weights.float()).sum(-1) / cosines.shape[-1]
    if padding_mask is None:
        return similarity_LB.mean()
    real_LB = ~padding_mask.t()
    return (similarity_LB * real_LB).sum() / real_LB.sum().clamp(min=1)
