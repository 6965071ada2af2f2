"""T5's attention: unscaled products of queries and keys, and a bias of their scores for each distance.

"Exploring the Limits of Transfer Learning" (Raffel et al., 2020), §2.1: the bias is a head's own and learned, and all
blocks of a stack share it; near distances are told apart one by one, far ones in ranges that grow by a factor, and all
beyond a largest one are the same.

Letters: B sentences, L words that read, J words that are read, A heads, D the width of a head, H the stream's width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.backbones.t5.config import T5Config
from fairseq_mtmoe.backbones.translation.decoding import STATE, BeamState, additive, split_heads


def buckets_of(distances: Tensor, num_buckets: int, max_distance: int, looks_ahead: bool) -> Tensor:
    """The bucket of each distance, from a word that reads to one that it reads; shaped as `distances`.

    Args:
        distances: places; below 0 is before.
        num_buckets: of all directions.
        max_distance: from here on distances are one.
        looks_ahead: whether words after have buckets of their own, the second half; else they are as the word itself.
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
        """The bias of words in the places `readers` (L,) for the first `length` words, (A, L, J)."""
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
        """What the words of x (L, B, H) read of the words of `read` (J, B, H): (L, B, H).

        Args:
            x: normed states.
            read: the same, or the encoder's output.
            bias: added to scores, broadcast to (B, A, L, J).
        """
        query = self._heads(self.q_proj(x))
        key, value = self._heads(self.k_proj(read)), self._heads(self.v_proj(read))
        found = attend(query, key, value, bias, self.dropout if self.training else 0.0)
        output: Tensor = self.out_proj(found.permute(2, 0, 1, 3).flatten(2))
        return output

    def _heads(self, values: Tensor) -> Tensor:
        """(…, B, A·D) by head: (B, A, …, D)."""
        return values.view(*values.shape[:2], self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def read_own(self, x: Tensor, bias: Tensor, state: BeamState) -> Tensor:
        """What the new word of each row, x (1, R, H), reads of its hypothesis; `bias` is (A, 1, words)."""
        keys, values = state.append(self, self.k_proj(x), self.v_proj(x))
        by_place = bias.repeat_interleave(state.beam, dim=2)  # the hypotheses' words of a place lie side by side
        return self._read(x, keys, values, state, state.own_mask(x) + by_place)

    def read_source(self, x: Tensor, source: Tensor, padding_mask: Tensor, state: BeamState) -> Tensor:
        """What the new word of each row, x (1, R, H), reads of its source (J, S, H), whose padding is (S, J)."""
        if self not in state.source:
            if state.source_mask is None:
                state.source_mask = additive(~padding_mask, source)[:, None, None]
            state.source[self] = self._heads(self.k_proj(source)), self._heads(self.v_proj(source))
        return self._read(x, *state.source[self], state, state.source_mask)

    def _read(self, x: Tensor, keys: Tensor, values: Tensor, state: BeamState, mask: Tensor | None) -> Tensor:
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


def state_of(incremental_state: dict[str, Any]) -> BeamState:
    """What a decoder remembers of the sentences that it is writing."""
    state: BeamState = incremental_state[STATE]
    return state
