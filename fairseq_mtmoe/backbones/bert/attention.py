"""BERT's self-attention, with an optional bias of the scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.backbones.bert.dropout import dropout
from fairseq_mtmoe.backbones.bert.packed_attention import Packing, can_pack, packed_attention
from fairseq_mtmoe.backbones.bert.rows import HIDDEN, Rows


class SelfAttention(nn.Module):
    """Self-attention; parameters have fairseq's names."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, rows: Rows, bias: Tensor | None = None) -> Tensor:
        """What each token of the block's output reads of its sentence, shaped as `rows.output_of(x)`.

        Args:
            x: the stream, (L, B, H) or (1, T, H) as `rows` has it.
            rows: of the batch.
            bias: added to the scores, (L, L), (B, 1, L, L) or what broadcasts to (B, heads, L, L).
        """
        query, key, value = self.q_proj(rows.output_of(x)), self.k_proj(x), self.v_proj(x)
        if bias is not None and rows.firsts_only:
            bias = bias[..., :1, :]
        packs = rows.packed and can_pack(query, key, value) and (bias is None or rows.pads_right)
        read = self._read_packed if packs else self._read
        output: Tensor = self.out_proj(read(query, key, value, rows, bias))
        return output

    def _read_packed(self, query: Tensor, key: Tensor, value: Tensor, rows: Rows, bias: Tensor | None) -> Tensor:
        lengths = rows.lengths()
        readers = lengths.new_ones(len(lengths)) if rows.firsts_only else lengths
        packing = Packing.of(readers, lengths, query.shape[-1], self.num_heads)
        p = self.dropout if self.training else 0.0
        if bias is not None:
            while bias.dim() < 4:
                bias = bias.unsqueeze(0)
            bias = bias.expand(len(lengths), *bias.shape[1:])
        return packed_attention(query.squeeze(0), key.squeeze(0), value.squeeze(0), packing, p, bias).unsqueeze(0)

    def _read(self, query: Tensor, key: Tensor, value: Tensor, rows: Rows, bias: Tensor | None) -> Tensor:
        mask = rows.attention_mask(query.dtype)
        if bias is not None:
            mask = bias if rows.padding_mask is None else bias.masked_fill(rows.padding_mask[:, None, None], HIDDEN)
        heads = self._heads(query, rows.output), self._heads(key, rows), self._heads(value, rows)
        read = attend(*heads, mask, self.dropout if self.training else 0.0)
        return rows.output.take(read.transpose(1, 2)).flatten(2)

    def _heads(self, values: Tensor, rows: Rows) -> Tensor:
        """(B, heads, L, H / heads)."""
        return rows.spread(values).view(*rows.shape, self.num_heads, -1).transpose(1, 2)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> Tensor:
    """`F.scaled_dot_product_attention`, (B, heads, L, D), whose CPU form with dropout is slower than its parts."""
    if query.device.type != "cpu" or torch.compiler.is_compiling() or not dropout_p:
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(2, 3)
    if mask is not None:
        scores += mask
    return dropout(scores.softmax(-1), dropout_p) @ value
