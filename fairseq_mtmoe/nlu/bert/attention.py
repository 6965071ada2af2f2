"""BERT's self-attention with an optional bias of the scores.

On a CPU the sentences of a batch are packed without padding. torch's attention would need padded
copies of queries, keys, values and their gradients. `packed_attention` reads and writes the tokens'
rows in place, and computes all products of a batch in one call (`mkl_batch.py`). On other devices
`attend` calls torch. Tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fairseq_mtmoe.moe.grouped_matmul.mkl_batch import (
    Operand,
    batched_products,
    has_batched_products,
)
from fairseq_mtmoe.nlu.bert.unpadding import HIDDEN, UnpaddedBatch


class SelfAttention(nn.Module):
    """Self-attention, whose parameters have fairseq's names."""

    def __init__(self, hidden_size: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(hidden_size, hidden_size)
        self.k_proj = nn.Linear(hidden_size, hidden_size)
        self.v_proj = nn.Linear(hidden_size, hidden_size)
        self.out_proj = nn.Linear(hidden_size, hidden_size)

    def forward(self, x: Tensor, batch: UnpaddedBatch, bias: Tensor | None = None) -> Tensor:
        """Attend within each sentence; return the shape of `batch.output_of(x)`.

        bias: added to the scores of all heads, (B, 1, L, L).
        """
        query = self.q_proj(batch.output_of(x))
        key = self.k_proj(x)
        value = self.v_proj(x)
        if bias is not None and batch.firsts_only:
            bias = bias[..., :1, :]
        packs = batch.packed and can_pack(query, key, value) and (bias is None or batch.pads_right)
        read = self._read_packed if packs else self._read
        output: Tensor = self.out_proj(read(query, key, value, batch, bias))
        return output

    def _read_packed(
        self, query: Tensor, key: Tensor, value: Tensor, batch: UnpaddedBatch, bias: Tensor | None
    ) -> Tensor:
        lengths = batch.lengths()
        readers = lengths.new_ones(len(lengths)) if batch.firsts_only else lengths
        packing = Packing.of(readers, lengths, query.shape[-1], self.num_heads)
        rows = query.squeeze(0), key.squeeze(0), value.squeeze(0)
        return packed_attention(*rows, packing, self.dropout * self.training, bias).unsqueeze(0)

    def _read(
        self, query: Tensor, key: Tensor, value: Tensor, batch: UnpaddedBatch, bias: Tensor | None
    ) -> Tensor:
        attention_mask = bias
        if batch.padding_mask is not None:
            is_padding = batch.padding_mask[:, None, None]
            if bias is None:
                attention_mask = is_padding.to(query.dtype) * HIDDEN
            else:
                attention_mask = bias.masked_fill(is_padding, HIDDEN)
        heads = self._heads(query, batch.output), self._heads(key, batch), self._heads(value, batch)
        read = attend(*heads, attention_mask, self.dropout * self.training)
        return batch.output.unpad(read.transpose(1, 2)).flatten(2)

    def _heads(self, values: Tensor, batch: UnpaddedBatch) -> Tensor:
        """Split values into heads: (B, heads, L, H / heads)."""
        return batch.pad(values).view(*batch.shape, self.num_heads, -1).transpose(1, 2)


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float
) -> Tensor:
    """Compute `F.scaled_dot_product_attention`, (B, heads, L, D).

    On a CPU torch's function is slow with dropout, so the parts are computed one by one.
    """
    if query.device.type != "cpu" or torch.compiler.is_compiling() or not dropout_p:
        return F.scaled_dot_product_attention(query, key, value, mask, dropout_p)
    scores = (query / math.sqrt(query.shape[-1])) @ key.transpose(2, 3)
    if mask is not None:
        scores += mask
    return F.dropout(scores.softmax(-1), dropout_p) @ value


@dataclass(frozen=True)
class Packing:
    """Offsets and sizes of the operands of P = S·A products.

    S is the number of sentences with tokens, A the number of heads.

    Scores are sorted by sentence, shorter ones first, then by head: a matrix (queries, keys) each.
    """

    width: int  # size of a token's row, all heads together
    head: int  # size of a head
    query_P: Tensor  # offset of the first query
    key_P: Tensor  # offset of the first key, and of the first value
    score_P: Tensor  # offset of the first score
    queries_P: Tensor  # number of queries
    keys_P: Tensor  # number of keys
    # For each group of sentences with the same number of keys: its numbers of scores and of keys.
    runs: list[tuple[int, int]]
    order: Tensor  # sentence indices in the order of the scores

    @classmethod
    def of(cls, queries_S: Tensor, keys_S: Tensor, width: int, num_heads: int) -> Packing:
        """Return the packing of sentences with these numbers of queries and keys."""
        starts = [counts.cumsum(0) - counts for counts in (queries_S, keys_S)]
        order = keys_S.argsort(stable=True)
        order = order[keys_S[order] > 0]
        head = width // num_heads
        offsets = torch.arange(num_heads) * head
        query_P, key_P = ((start[order, None] * width + offsets).flatten() for start in starts)
        queries_P, keys_P = (
            counts[order].repeat_interleave(num_heads) for counts in (queries_S, keys_S)
        )
        scores_P = queries_P * keys_P
        lengths, first = torch.unique_consecutive(keys_P, return_inverse=True)
        sizes = torch.zeros_like(lengths).index_add(0, first, scores_P)
        runs = list(zip(sizes.tolist(), lengths.tolist(), strict=True))
        return cls(
            width,
            head,
            query_P,
            key_P,
            scores_P.cumsum(0) - scores_P,
            queries_P,
            keys_P,
            runs,
            order,
        )

    def rows_of(self, scores: Tensor) -> Iterator[Tensor]:
        """Yield views of the scores with rows of equal length, one row per query and head."""
        start = 0
        for size, keys in self.runs:
            yield scores[start : start + size].view(-1, keys)
            start += size

    def sentences_of(self, scores: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield equally long sentences, (R,), with their scores (R, A, queries, keys)."""
        first = 0
        num_heads = self.width // self.head
        for rows in self.rows_of(scores):
            sentences = rows.view(
                -1, num_heads, int(self.queries_P[first * num_heads]), rows.shape[1]
            )
            yield self.order[first : first + len(sentences)], sentences
            first += len(sentences)

    def queries(self, values: Tensor) -> Operand:
        """Return the matrices (queries, head) of `values`."""
        return Operand(values, self.query_P, self.width)

    def keys(self, values: Tensor, transposed: bool = False) -> Operand:
        """Return the matrices (keys, head) of `values`."""
        return Operand(values, self.key_P, self.width, transposed)

    def scores(self, values: Tensor, transposed: bool = False) -> Operand:
        """Return the matrices (queries, keys) of `values`."""
        return Operand(values, self.score_P, self.keys_P, transposed)


def can_pack(*operands: Tensor) -> bool:
    """Return whether `packed_attention` works with these operands."""
    is_plain = not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")
    return is_plain and has_batched_products(*operands)


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packing: Packing,
    dropout_p: float,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the attention output of packed sentences, (M, H).

    Args:
        query: (M, H), one head after the other.
        key, value: (T, H).
        bias: added to the scores of all heads, (S, 1, queries, keys), at least as large as the
            longest sentence. With a bias, sentences with the same number of keys must have the same
            number of queries.
    """
    read: Tensor = _PackedAttention.apply(  # type: ignore[no-untyped-call]
        query, key, value, bias, packing, dropout_p
    )
    return read


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        packing: Packing,
        dropout_p: float,
    ) -> Tensor:
        query = query.contiguous()
        key = key.contiguous()
        value = value.contiguous()
        weights = query.new_empty(sum(size for size, _ in packing.runs))
        heads_P = torch.full_like(packing.keys_P, packing.head)
        sizes = (packing.queries_P, packing.keys_P, heads_P)
        operands = (
            packing.queries(query),
            packing.keys(key, transposed=True),
            packing.scores(weights),
        )
        batched_products(*operands, *sizes, packing.head**-0.5)
        if bias is not None:
            for sentences, scores in packing.sentences_of(weights):
                scores += _corner(bias, scores).index_select(0, sentences)
        for rows in packing.rows_of(weights):
            torch.softmax(rows, -1, out=rows)
        scales = F.dropout(torch.ones_like(weights), dropout_p) if dropout_p else None
        dropped = weights if scales is None else weights * scales
        read = torch.zeros_like(query)  # sentences without tokens keep 0
        sizes = (packing.queries_P, heads_P, packing.keys_P)
        batched_products(
            packing.scores(dropped), packing.keys(value), packing.queries(read), *sizes
        )
        ctx.save_for_backward(query, key, value, weights, scales)
        ctx.packing = packing
        ctx.bias_shape = None if bias is None else bias.shape
        return read

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, scales = ctx.saved_tensors
        pack: Packing = ctx.packing
        grad = grad.contiguous()
        scale = pack.head**-0.5
        heads_P = torch.full_like(pack.keys_P, pack.head)
        dropped = weights if scales is None else weights * scales
        grad_query, grad_key, grad_value = (
            torch.zeros_like(tensor) for tensor in (query, key, value)
        )
        by_key = (pack.keys_P, heads_P, pack.queries_P)
        by_query = (pack.queries_P, heads_P, pack.keys_P)
        batched_products(
            pack.scores(dropped, True), pack.queries(grad), pack.keys(grad_value), *by_key
        )
        grad_scores = torch.empty_like(weights)
        operands = pack.queries(grad), pack.keys(value, transposed=True), pack.scores(grad_scores)
        batched_products(*operands, pack.queries_P, pack.keys_P, heads_P)
        if scales is not None:
            grad_scores.mul_(scales)
        for grad_rows, rows in zip(pack.rows_of(grad_scores), pack.rows_of(weights), strict=True):
            torch.ops.aten._softmax_backward_data.out(
                grad_rows, rows, -1, rows.dtype, grad_input=grad_rows
            )
        grad_bias = None
        if ctx.needs_input_grad[3]:
            grad_bias = grad_scores.new_zeros(ctx.bias_shape)
            for sentences, grads in pack.sentences_of(grad_scores):
                _corner(grad_bias, grads)[sentences] = grads.sum(1, keepdim=True)
        batched_products(
            pack.scores(grad_scores), pack.keys(key), pack.queries(grad_query), *by_query, scale
        )
        batched_products(
            pack.scores(grad_scores, True), pack.queries(query), pack.keys(grad_key), *by_key, scale
        )
        return grad_query, grad_key, grad_value, grad_bias, None, None


def _corner(bias: Tensor, scores: Tensor) -> Tensor:
    """Return the part of the bias that fits scores of shape (R, A, queries, keys)."""
    return bias[:, :, : scores.shape[2], : scores.shape[3]]
