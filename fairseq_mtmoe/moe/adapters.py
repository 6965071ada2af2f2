"""Banks of low-rank adapters, and their weighted sum: PEMT, equation 1.

An adapter maps a token's I inputs to r inner activations, and these to O outputs. A mixture of K
adapters with weights w is one low-rank product:

    Σ_k w_k E_k(x) = [w_1 z_1 … w_K z_K] [up_1; …; up_K],
    [z_1 … z_K] = narrow([down_1; …; down_K] x)

These are two products with M = K·r columns between them. If the adapters are frozen, the backward
pass stores only these columns of a token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.moe.stacked import StackedBank, draw_linear_

TINY = 1e-16  # the cosine with an adapter's output of a smaller squared norm counts as 0


class AdapterBank(StackedBank, ABC):
    """K adapters of one kind: `down` (K, r, I), `up` (K, r, O), and biases.

    Outputs are multiplied by `scale`. `down` is initialized as in `nn.Linear`, each member
    separately. All else starts at 0, so that a new adapter adds nothing.

    Attributes:
        reads_inner: whether the input is a feed-forward layer's inner activations, (…, F),
            instead of its input.
    """

    reads_inner: ClassVar[bool]

    def __init__(
        self, num_members: int, input_size: int, output_size: int, rank: int, scale: float = 1.0
    ) -> None:
        super().__init__()
        assert num_members >= 1 and rank >= 1 and 0 < scale < float("inf")
        self.num_members = num_members
        self.rank = rank
        self.scale = scale
        self.down = nn.Parameter(torch.empty(num_members, rank, input_size))
        self.up = nn.Parameter(torch.empty(num_members, rank, output_size))
        nn.init.zeros_(self.up)
        for index, down_RI in enumerate(self.down.data):
            draw_linear_(down_RI, generator=self.generator(index))

    @abstractmethod
    def narrow(self, x: Tensor) -> Tensor:
        """Return all members' inner activations, (…, I) to (…, M), member after member."""

    def widen(self, narrow: Tensor, weights: Tensor | None, base: Tensor) -> Tensor:
        """Return `base` plus the weighted sum of outputs, (…, B, O).

        `narrow` has the inner activations, (…, B, M). `weights` are (K,), or for each sentence
        (B, K); None: all 1. A single member of weight 1 gives the same bits as without weights.
        """
        if weights is not None:
            narrow = narrow * weights.to(narrow.dtype).repeat_interleave(self.rank, -1)
        offset = self._offset(weights)
        if offset is not None:
            base = base + offset.to(narrow.dtype)
        rows_TM = narrow.flatten(0, -2)
        up_MO = self.up.flatten(0, 1)
        base_TO = base.reshape(len(rows_TM), -1)
        return torch.addmm(base_TO, rows_TM, up_MO, alpha=self.scale).view(base.shape)

    def _offset(self, weights: Tensor | None) -> Tensor | None:
        """Return the weighted output bias, (O,) or (B, O), or None."""
        return None

    def cosines(self, narrow: Tensor, output: Tensor) -> Tensor:
        """Return cos(H_o, E_k), (…, K), float32, for a layer's output H_o, (…, O).

        It never computes E_k: H_o·E_k = (up_k H_o)·z_k, and E_k·E_k = z_k·(up_k up_kᵀ) z_k. The
        cosine of E_k = 0 is 0.
        """
        # The residual stream may exceed the range of float16.
        kind = torch.float32 if narrow.dtype == torch.float16 else narrow.dtype
        with torch.autocast(narrow.device.type, enabled=False):
            z_TKR = narrow.to(kind).reshape(-1, self.num_members, self.rank)
            output_TO = output.reshape(-1, output.shape[-1]).to(kind)
            up_KRO = self.up.to(kind)
            seen_TKR = (output_TO @ up_KRO.flatten(0, 1).t()).view_as(z_TKR)
            products_TK = (seen_TKR * z_TKR).sum(-1, dtype=torch.float32)
            # Always in float32, so that terms that cancel in E_k cancel here, too.
            z_TKR = z_TKR.float()
            up_KRO = up_KRO.float()
            grams_KRR = up_KRO @ up_KRO.transpose(1, 2)
            turned_TKR = torch.bmm(z_TKR.transpose(0, 1), grams_KRR).transpose(0, 1)
            squares_TK = (turned_TKR * z_TKR).sum(-1)
            extra = self._products_of_offsets(output_TO, z_TKR)
            if extra is not None:
                products_TK = products_TK + extra[0]
                squares_TK = squares_TK + extra[1]
        lengths_TK = squares_TK.masked_fill(squares_TK <= TINY, float("inf")).sqrt()
        norms_T1: Tensor = torch.linalg.vector_norm(output_TO.float(), dim=-1, keepdim=True)
        # Two divisions: an infinite product of both norms would give NaN gradients.
        cosines_TK = products_TK / lengths_TK / norms_T1.clamp(min=TINY)
        return cosines_TK.view(*narrow.shape[:-1], self.num_members)

    def _products_of_offsets(
        self, output_TO: Tensor, z_TKR: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """Return the biases' terms of H_o·E_k and |E_k|², (T, K) each, float32, or None."""
        return None

    def extra_repr(self) -> str:
        """Return the sizes for `repr`."""
        sizes = f"input_size={self.down.shape[2]}, output_size={self.up.shape[2]}, rank={self.rank}"
        return f"num_members={self.num_members}, {sizes}, scale={self.scale}"


class LoraBank(AdapterBank):
    """LoRA (Hu et al., 2022) of the second matrix: E(x) = α/r · upᵀ down x."""

    reads_inner = True

    def narrow(self, x: Tensor) -> Tensor:
        """Return all members' products with `down`: (…, I) to (…, M)."""
        return F.linear(x, self.down.flatten(0, 1))

    @torch.no_grad()
    def merged(self, weights_K: Tensor) -> Tensor:
        """Return the mixture as a change of the feed-forward matrix, (O, I), float32."""
        columns_M = weights_K.float().repeat_interleave(self.rank)
        up_OM = self.up.float().flatten(0, 1).t() * columns_M
        return self.scale * (up_OM @ self.down.float().flatten(0, 1))


class BottleneckBank(AdapterBank):
    """The parallel adapter (He et al., 2022).

    E(x) = upᵀ relu(down x + down_bias) + up_bias.
    """

    reads_inner = False

    def __init__(self, num_members: int, input_size: int, output_size: int, rank: int) -> None:
        super().__init__(num_members, input_size, output_size, rank)
        self.down_bias = nn.Parameter(torch.zeros(num_members, rank))
        self.up_bias = nn.Parameter(torch.zeros(num_members, output_size))

    def narrow(self, x: Tensor) -> Tensor:
        """Return the ReLU of all members' products with `down`: (…, I) to (…, M)."""
        return F.relu(F.linear(x, self.down.flatten(0, 1), self.down_bias.flatten()))

    def _offset(self, weights: Tensor | None) -> Tensor | None:
        if weights is None:
            return self.up_bias.sum(0)
        return weights.to(self.up_bias.dtype) @ self.up_bias

    def _products_of_offsets(self, output_TO: Tensor, z_TKR: Tensor) -> tuple[Tensor, Tensor]:
        bias_KO = self.up_bias.float()
        crossed_KR = (self.up.float() @ bias_KO.unsqueeze(2)).squeeze(2)
        crossed_TK = (z_TKR * crossed_KR).sum(-1)
        products_TK = (output_TO @ self.up_bias.to(output_TO).t()).float()
        return products_TK, 2 * crossed_TK + bias_KO.square().sum(-1)

    @torch.no_grad()
    def merged(self, weights_K: Tensor) -> BottleneckBank:
        """Return one adapter of rank K·r that equals the mixture.

        Its `up` contains the weights.
        """
        _, _, input_size = self.down.shape
        merged = BottleneckBank(1, input_size, self.up.shape[2], self.num_members * self.rank)
        merged = merged.to(device=self.up.device, dtype=self.up.dtype)
        weights_K = weights_K.float()
        merged.down.copy_(self.down.flatten(0, 1).unsqueeze(0))
        merged.down_bias.copy_(self.down_bias.flatten().unsqueeze(0))
        merged.up.copy_((weights_K[:, None, None] * self.up).flatten(0, 1).unsqueeze(0))
        merged.up_bias.copy_((weights_K @ self.up_bias.float()).unsqueeze(0))
        return merged


# Names of adapters in `--adapter`.
LORA = "lora"
BOTTLENECK = "bottleneck"
ADAPTERS: dict[str, type[AdapterBank]] = {LORA: LoraBank, BOTTLENECK: BottleneckBank}
