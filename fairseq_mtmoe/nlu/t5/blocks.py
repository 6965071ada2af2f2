"""T5's attention and blocks, with a slot and the seams of all backbones.

Implements "Exploring the Limits of Transfer Learning" (Raffel et al., 2020), §2.1. Attention scores
are not scaled. Each head learns a bias of its scores for each short distance and each range of long
distances. All blocks of a stack share these biases.

Letters: B sentences, L queries, J keys, A heads, D the width of a head, H the model width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.nlu.t5.config import ACTIVATIONS, T5Config
from fairseq_mtmoe.slots import BatchContext, Block
from fairseq_mtmoe.translation.model.beam_attention import STATE, BeamState, split_heads


def buckets_of(distances: Tensor, num_buckets: int, max_distance: int, looks_ahead: bool) -> Tensor:
    """Return the bucket of each distance from a query to a key.

    Negative distances are earlier keys. Distances from `max_distance` on share a bucket. If
    attention `looks_ahead`, the second half of the buckets is for later keys; otherwise later keys
    count as distance 0.
    """
    first = torch.zeros_like(distances)
    if looks_ahead:
        num_buckets //= 2
        first = (distances > 0) * num_buckets
        apart = distances.abs()
    else:
        apart = (-distances).clamp(min=0)
    exact = num_buckets // 2
    # Clamp to 1, so that the logarithm is finite at distance 0, whose bucket is exact anyway
    ranges = (
        torch.log(apart.clamp(min=1).float() / exact)
        / math.log(max_distance / exact)
        * (num_buckets - exact)
    )
    far = (exact + ranges.long()).clamp(max=num_buckets - 1)
    return first + torch.where(apart < exact, apart, far)


class RelativePositions(nn.Module):
    """The bias of a stack's self-attention scores."""

    def __init__(self, config: T5Config, looks_ahead: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(
            torch.empty(config.relative_attention_num_buckets, config.num_heads)
        )
        nn.init.normal_(self.weight, std=config.initializer_factor * config.d_model**-0.5)
        self.max_distance = config.relative_attention_max_distance
        self.looks_ahead = looks_ahead

    def forward(self, readers: Tensor, length: int) -> Tensor:
        """Return the bias of queries at `readers` (L,) for `length` keys, (A, L, J)."""
        distances = torch.arange(length, device=readers.device) - readers.unsqueeze(1)
        buckets = buckets_of(distances, len(self.weight), self.max_distance, self.looks_ahead)
        return F.embedding(buckets, self.weight).permute(2, 0, 1)


class T5Attention(nn.Module):
    """Attention to a sentence itself or to the source.

    Parameters have fairseq's names.
    """

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        H = config.d_model
        inner = config.num_heads * config.d_kv
        std = config.initializer_factor
        self.num_heads = config.num_heads
        self.head_dim = config.d_kv
        self.dropout = config.dropout_rate
        self.q_proj = nn.Linear(H, inner, bias=False)
        self.k_proj = nn.Linear(H, inner, bias=False)
        self.v_proj = nn.Linear(H, inner, bias=False)
        self.out_proj = nn.Linear(inner, H, bias=False)
        # The initial queries include the scale that scores lack
        nn.init.normal_(self.q_proj.weight, std=std * (H * config.d_kv) ** -0.5)
        for projection, width in ((self.k_proj, H), (self.v_proj, H), (self.out_proj, inner)):
            nn.init.normal_(projection.weight, std=std * width**-0.5)

    def forward(self, x: Tensor, read: Tensor, bias: Tensor | None) -> Tensor:
        """Attend from normed `x` (L, B, H) to `read` (J, B, H); return (L, B, H).

        bias: added to scores, broadcastable to (B, A, L, J).
        """
        query = self._heads(self.q_proj(x))
        key = self._heads(self.k_proj(read))
        value = self._heads(self.v_proj(read))
        attended = attend(query, key, value, bias, self.dropout if self.training else 0.0)
        output: Tensor = self.out_proj(attended.permute(2, 0, 1, 3).flatten(2))
        return output

    def _heads(self, values: Tensor) -> Tensor:
        """Split into heads: (L, B, A·D) to (B, A, L, D)."""
        return values.view(*values.shape[:2], self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def read_word(
        self, x: Tensor, keys: Tensor, values: Tensor, state: BeamState, mask: Tensor | None
    ) -> Tensor:
        """Attend from each row's new word, x (1, R, H), to cached keys and values."""
        query = split_heads(self.q_proj(x), state.num_sentences, self.num_heads)
        attended = attend(query, keys, values, mask, 0.0)
        output: Tensor = self.out_proj(attended.transpose(1, 2).reshape(*x.shape[:2], -1))
        return output


def attend(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout_p: float
) -> Tensor:
    """Compute unscaled attention of (…, L, D) to (…, J, D), with softmax in float32."""
    if query.device.type != "cpu" and not dropout_p:
        return F.scaled_dot_product_attention(query, key, value, bias, scale=1.0)
    scores = query @ key.transpose(-2, -1)
    scores = scores if bias is None else scores + bias
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return F.dropout(weights, dropout_p) @ value


class RMSNorm(nn.Module):
    """Root-mean-square norm without bias, computed in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x, (…, H)."""
        values = x.float()
        scaled = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(self.weight.dtype)


class T5Block(Block):
    """Common part of both stacks' blocks: self-attention and feed-forward layer."""

    normalize_before = True

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        H = config.d_model
        F = config.d_ff
        eps = config.layer_norm_epsilon
        std = config.initializer_factor
        self.self_attn = T5Attention(config)
        self.self_attn_layer_norm = RMSNorm(H, eps)
        self.fc1 = nn.Linear(H, F, bias=False)
        self.fc2 = nn.Linear(F, H, bias=False)
        self.fc1_gate = nn.Linear(H, F, bias=False) if config.is_gated else None
        self.final_layer_norm = RMSNorm(H, eps)
        self.activation_fn = ACTIVATIONS[config.feed_forward_proj]
        self.activation_dropout_module = nn.Dropout(config.dropout_rate)
        self.dropout_module = nn.Dropout(config.dropout_rate)
        self.begin_dense()
        for linear in (self.fc1, self.fc2, self.fc1_gate):
            if linear is not None:
                nn.init.normal_(linear.weight, std=std * linear.in_features**-0.5)

    def inner(self, branch_input: Tensor) -> Tensor:
        """Return the input of the second feed-forward matrix, gated in T5 1.1, (L, B, F)."""
        inner = self.activation_fn(self.fc1(branch_input))
        if self.fc1_gate is not None:
            inner = inner * self.fc1_gate(branch_input)
        dropped: Tensor = self.activation_dropout_module(inner)
        return dropped


class EncoderBlock(T5Block):
    """A block of the encoder."""

    def forward(self, x: Tensor, context: BatchContext, bias: Tensor) -> Tensor:
        """Return the new stream, (L, B, H).

        `bias` (B, A, L, L) is added to the scores of self-attention.
        """
        normed = self.self_attn_layer_norm(x)
        h = self.join(self.self_attn(normed, normed, bias), x)
        return self.feed_forward(h, context)


class DecoderBlock(T5Block):
    """A block of the decoder, which also attends to the source."""

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
        """Return the new stream, (L, B, H); in incremental decoding of the last word only.

        Args:
            bias: added to the scores of self-attention, (A, L, words).
            source, source_padding: the encoder's output (J, B, H), and True at its padding, (B, J).
            incremental_state: fairseq's state of a search.
        """
        h = self.attend(x, bias, incremental_state)
        h = self.attend_to_source(h, source, source_padding, incremental_state)
        return self.feed_forward(h, context)

    def attend(self, x: Tensor, bias: Tensor, incremental_state: dict[str, Any] | None) -> Tensor:
        """Compute the block's first part, self-attention."""
        normed = self.self_attn_layer_norm(x)
        attention = self.self_attn
        if incremental_state is None:
            return self.join(attention(normed, normed, bias), x)
        state: BeamState = incremental_state[STATE]
        keys, values = state.append(attention, attention.k_proj(normed), attention.v_proj(normed))
        # The words of hypotheses at a position are neighbours.
        by_position = bias.repeat_interleave(state.beam, dim=2)
        return self.join(
            attention.read_word(normed, keys, values, state, state.own_mask(normed) + by_position),
            x,
        )

    def attend_to_source(
        self,
        h: Tensor,
        source: Tensor,
        source_padding: Tensor,
        incremental_state: dict[str, Any] | None,
    ) -> Tensor:
        """Compute the block's middle part, attention to the source."""
        normed = self.encoder_attn_layer_norm(h)
        if incremental_state is None:
            hidden = hidden_at(source_padding, normed)[:, None, None]
            return self.join(self.encoder_attn(normed, source, hidden), h)
        state: BeamState = incremental_state[STATE]
        keys, values = state.read_source(self.encoder_attn, source, source_padding)
        return self.join(
            self.encoder_attn.read_word(normed, keys, values, state, state.source_mask), h
        )


def hidden_at(padding_mask: Tensor, like: Tensor) -> Tensor:
    """Return an additive mask: the lowest number at padding, else 0."""
    return like.new_zeros(padding_mask.shape).masked_fill_(
        padding_mask, torch.finfo(like.dtype).min
    )
