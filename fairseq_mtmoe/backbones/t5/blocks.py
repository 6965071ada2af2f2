"""T5's blocks, with the seams that all backbones' blocks have, and a slot."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.backbones.blocks import Block
from fairseq_mtmoe.backbones.t5.attention import T5Attention, state_of
from fairseq_mtmoe.backbones.t5.config import ACTIVATIONS, T5Config
from fairseq_mtmoe.slots import BatchContext, dense


class RMSNorm(nn.Module):
    """Scaling by the root of the mean square, without a mean or a bias; worked out in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Shaped and typed as x, (…, H)."""
        values = x.float()
        scaled = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(self.weight.dtype)


class T5Block(Block):
    """What the blocks of both stacks have: self-attention and a feed-forward layer, each of the stream's norm."""

    normalize_before = True

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        H, F, eps, std = config.d_model, config.d_ff, config.layer_norm_epsilon, config.initializer_factor
        self.self_attn = T5Attention(config)
        self.self_attn_layer_norm = RMSNorm(H, eps)
        self.fc1, self.fc2 = nn.Linear(H, F, bias=False), nn.Linear(F, H, bias=False)
        self.fc1_gate = nn.Linear(H, F, bias=False) if config.is_gated else None
        self.final_layer_norm = RMSNorm(H, eps)
        self.activation_fn = ACTIVATIONS[config.feed_forward_proj]
        self.activation_dropout_module = nn.Dropout(config.dropout_rate)
        self.dropout_module = nn.Dropout(config.dropout_rate)
        self.slot = dense
        for linear in (self.fc1, self.fc2, self.fc1_gate):
            if linear is not None:
                nn.init.normal_(linear.weight, std=std * linear.in_features**-0.5)

    def inner(self, branch_input: Tensor) -> Tensor:
        """What the feed-forward layer's second matrix reads, gated in T5 1.1: (L, B, F)."""
        inner = self.activation_fn(self.fc1(branch_input))
        if self.fc1_gate is not None:
            inner = inner * self.fc1_gate(branch_input)
        dropped: Tensor = self.activation_dropout_module(inner)
        return dropped


class EncoderBlock(T5Block):
    """A block of the encoder."""

    def forward(self, x: Tensor, context: BatchContext, bias: Tensor) -> Tensor:
        """The new stream, (L, B, H); `bias` is what scores get, (B, A, L, L)."""
        return self.feed_forward(self.attend(x, bias), context)

    def attend(self, x: Tensor, bias: Tensor) -> Tensor:
        """The block's first half: self-attention."""
        normed = self.self_attn_layer_norm(x)
        return self.join(self.self_attn(normed, normed, bias), x)


class DecoderBlock(T5Block):
    """A block of the decoder, which reads the source, too."""

    def __init__(self, config: T5Config) -> None:
        super().__init__(config)
        self.encoder_attn = T5Attention(config)
        self.encoder_attn_layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)

    def forward(
        self,
        x: Tensor,
        context: BatchContext,
        bias: Tensor,
        source: Tensor,
        source_padding: Tensor,
        incremental_state: dict[str, Any] | None = None,
    ) -> Tensor:
        """The new stream, (L, B, H).

        Args:
            x: the stream; while a text grows word by word, of the last word alone.
            context: of this pass.
            bias: what scores of the own words get, (A, L, words).
            source: the encoder's output, (J, B, H).
            source_padding: True at its padding, (B, J).
            incremental_state: fairseq's, while a text grows word by word.
        """
        h = self.attend(x, bias, incremental_state)
        h = self.attend_to_source(h, source, source_padding, incremental_state)
        return self.feed_forward(h, context)

    def attend(self, x: Tensor, bias: Tensor, incremental_state: dict[str, Any] | None) -> Tensor:
        """The block's first part: self-attention."""
        normed = self.self_attn_layer_norm(x)
        if incremental_state is None:
            return self.join(self.self_attn(normed, normed, bias), x)
        return self.join(self.self_attn.read_own(normed, bias, state_of(incremental_state)), x)

    def attend_to_source(
        self, h: Tensor, source: Tensor, source_padding: Tensor, incremental_state: dict[str, Any] | None
    ) -> Tensor:
        """The block's middle part."""
        normed = self.encoder_attn_layer_norm(h)
        if incremental_state is None:
            hidden = hidden_at(source_padding, normed)[:, None, None]
            return self.join(self.encoder_attn(normed, source, hidden), h)
        read = self.encoder_attn.read_source(normed, source, source_padding, state_of(incremental_state))
        return self.join(read, h)


def hidden_at(padding_mask: Tensor, like: Tensor) -> Tensor:
    """What hides padding when scores get it: the least number there, else 0, shaped as the mask."""
    return like.new_zeros(padding_mask.shape).masked_fill_(padding_mask, torch.finfo(like.dtype).min)
