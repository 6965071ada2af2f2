"""T5's blocks, with the seams that all backbones' blocks have, and a slot; and their attention.

"Exploring the Limits of Transfer Learning" (Raffel et al., 2020), §2.1: products of queries and keys are unscaled, and
each head learns a bias of its scores for each distance, or range of far distances, which all blocks of a stack share.

Letters: B sentences, L words that read, J words that are read, A heads, D the width of a head, H the stream's width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.backbones.blocks import Block
from fairseq_mtmoe.backbones.t5.config import ACTIVATIONS, T5Config
from fairseq_mtmoe.backbones.translation.decoding import STATE, BeamState, split_heads
from fairseq_mtmoe.slots import BatchContext


def buckets_of(distances: Tensor, num_buckets: int, max_distance: int, looks_ahead: bool) -> Tensor:
    """The bucket of each distance, from a word that reads to one that it reads; shaped as `distances`.

    Below 0 is before. All from `max_distance` on are one. Where attention `looks_ahead`, words after have buckets of
    their own, the second half; else they are as the word itself.
    """
    first = torch.zeros_like(distances)
    if looks_ahead:
        num_buckets //= 2
        first = (distances > 0) * num_buckets
        apart = distances.abs()
    else:
        apart = (-distances).clamp(min=0)
    exact = num_buckets // 2
    # The smallest number of the logarithm's argument is 1, so that distance 0, which is exact, is finite too.
    ranges = torch.log(apart.clamp(min=1).float() / exact) / math.log(max_distance / exact) * (num_buckets - exact)
    far = (exact + ranges.long()).clamp(max=num_buckets - 1)
    return first + torch.where(apart < exact, apart, far)


class RelativePositions(nn.Module):
    """The bias that a stack's self-attention adds to scores."""

    def __init__(self, config: T5Config, looks_ahead: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(config.relative_attention_num_buckets, config.num_heads))
        nn.init.normal_(self.weight, std=config.initializer_factor * config.d_model**-0.5)
        self.max_distance = config.relative_attention_max_distance
        self.looks_ahead = looks_ahead

    def forward(self, readers: Tensor, length: int) -> Tensor:
        """The bias of words at the positions `readers` (L,) for the first `length` words, (A, L, J)."""
        distances = torch.arange(length, device=readers.device) - readers.unsqueeze(1)
        buckets = buckets_of(distances, len(self.weight), self.max_distance, self.looks_ahead)
        return F.embedding(buckets, self.weight).permute(2, 0, 1)


class T5Attention(nn.Module):
    """Attention to a sentence's own words, or to the source's; parameters have fairseq's names."""

    def __init__(self, config: T5Config) -> None:
        super().__init__()
        H, inner, std = config.d_model, config.num_heads * config.d_kv, config.initializer_factor
        self.num_heads, self.head_dim = config.num_heads, config.d_kv
        self.dropout = config.dropout_rate
        self.q_proj = nn.Linear(H, inner, bias=False)
        self.k_proj = nn.Linear(H, inner, bias=False)
        self.v_proj = nn.Linear(H, inner, bias=False)
        self.out_proj = nn.Linear(inner, H, bias=False)
        # Queries begin with the scale that scores have not.
        nn.init.normal_(self.q_proj.weight, std=std * (H * config.d_kv) ** -0.5)
        for projection, width in ((self.k_proj, H), (self.v_proj, H), (self.out_proj, inner)):
            nn.init.normal_(projection.weight, std=std * width**-0.5)

    def forward(self, x: Tensor, read: Tensor, bias: Tensor | None) -> Tensor:
        """What the words of x (L, B, H), normed, read of the words of `read` (J, B, H): (L, B, H).

        `bias` is added to scores, broadcast to (B, A, L, J).
        """
        query = self._heads(self.q_proj(x))
        key, value = self._heads(self.k_proj(read)), self._heads(self.v_proj(read))
        found = attend(query, key, value, bias, self.dropout if self.training else 0.0)
        output: Tensor = self.out_proj(found.permute(2, 0, 1, 3).flatten(2))
        return output

    def _heads(self, values: Tensor) -> Tensor:
        """(…, B, A·D) by head: (B, A, …, D)."""
        return values.view(*values.shape[:2], self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def read_word(self, x: Tensor, keys: Tensor, values: Tensor, state: BeamState, mask: Tensor | None) -> Tensor:
        """What the new word of each row, x (1, R, H), reads of keys and values of the `state`."""
        query = split_heads(self.q_proj(x), state.num_sentences, self.num_heads)
        found = attend(query, keys, values, mask, 0.0)
        output: Tensor = self.out_proj(found.transpose(1, 2).reshape(*x.shape[:2], -1))
        return output


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, dropout_p: float) -> Tensor:
    """Unscaled attention, (…, L, D) to (…, J, D); weights are worked out in float32."""
    if query.device.type != "cpu" and not dropout_p:
        return F.scaled_dot_product_attention(query, key, value, bias, scale=1.0)
    scores = query @ key.transpose(-2, -1)
    scores = scores if bias is None else scores + bias
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    return F.dropout(weights, dropout_p) @ value


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
        self.begin_dense()
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
        """The new stream, (L, B, H)."""
        return self.feed_forward(self.attend(x, bias), context)

    def attend(self, x: Tensor, bias: Tensor) -> Tensor:
        """The block's first half: self-attention, to whose scores `bias` (B, A, L, L) is added."""
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
        """The new stream, (L, B, H); while a text grows word by word, in fairseq's state, of the last word alone.

        Scores of the own words get `bias`, (A, L, words); `source` is the encoder's output (J, B, H).
        """
        h = self.attend(x, bias, incremental_state)
        h = self.attend_to_source(h, source, source_padding, incremental_state)
        return self.feed_forward(h, context)

    def attend(self, x: Tensor, bias: Tensor, incremental_state: dict[str, Any] | None) -> Tensor:
        """The block's first part: self-attention."""
        normed, attention = self.self_attn_layer_norm(x), self.self_attn
        if incremental_state is None:
            return self.join(attention(normed, normed, bias), x)
        state: BeamState = incremental_state[STATE]
        keys, values = state.append(attention, attention.k_proj(normed), attention.v_proj(normed))
        by_position = bias.repeat_interleave(state.beam, dim=2)  # the hypotheses' words of a position lie side by side
        return self.join(attention.read_word(normed, keys, values, state, state.own_mask(normed) + by_position), x)

    def attend_to_source(
        self, h: Tensor, source: Tensor, source_padding: Tensor, incremental_state: dict[str, Any] | None
    ) -> Tensor:
        """The block's middle part."""
        normed = self.encoder_attn_layer_norm(h)
        if incremental_state is None:
            hidden = hidden_at(source_padding, normed)[:, None, None]
            return self.join(self.encoder_attn(normed, source, hidden), h)
        state: BeamState = incremental_state[STATE]
        keys, values = state.read_source(self.encoder_attn, source, source_padding)
        return self.join(self.encoder_attn.read_word(normed, keys, values, state, state.source_mask), h)


def hidden_at(padding_mask: Tensor, like: Tensor) -> Tensor:
    """What hides padding when scores get it: the least number there, else 0, shaped as the mask."""
    return like.new_zeros(padding_mask.shape).masked_fill_(padding_mask, torch.finfo(like.dtype).min)
