"""Attention of sentences whose tokens lie one after the other, without padding: on a CPU, for training.

torch multiplies heads that lie one by one in memory: queries, keys, values and the gradients of all three are copied
for it, padding with them. Here every product reads the tokens' rows and writes into them where they are, all products
of a batch in one call (`mkl_batch.py`), and the scores of a sentence take as much room as it has tokens. `attention.py`
has the same by torch's own operations; tests compare the two, gradients included.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_mtmoe.backbones.bert.dropout import dropout_scales
from fairseq_mtmoe.moe.grouped_matmul.mkl_batch import Operand, batched_products, has_batched_products


@dataclass(frozen=True)
class Packing:
    """Where the products of S sentences and A heads find their operands: P = S·A of them, none of an empty sentence.

    Scores are kept by sentence, those of fewer tokens first, then by head: (queries, keys) for each.

    Attributes:
        width: values of a token's row, of all heads.
        head: values of a head.
        query_P, key_P: the element at which queries and keys (and values) begin.
        score_P: the element at which scores begin.
        queries_P, keys_P: how many there are.
        runs: of sentences with equally many keys: how many scores they have, and how many keys.
        order: the sentences in the order of their scores.
    """

    width: int
    head: int
    query_P: Tensor
    key_P: Tensor
    score_P: Tensor
    queries_P: Tensor
    keys_P: Tensor
    runs: list[tuple[int, int]]
    order: Tensor

    @classmethod
    def of(cls, queries_S: Tensor, keys_S: Tensor, width: int, num_heads: int) -> Packing:
        """For sentences with so many tokens that read, and so many that are read."""
        starts = [counts.cumsum(0) - counts for counts in (queries_S, keys_S)]
        order = keys_S.argsort(stable=True)
        order = order[keys_S[order] > 0]
        queries, keys = queries_S[order], keys_S[order]
        head = width // num_heads
        places = torch.arange(num_heads) * head
        query_P, key_P = ((start[order, None] * width + places).flatten() for start in starts)
        queries_P, keys_P = (counts.repeat_interleave(num_heads) for counts in (queries, keys))
        scores_P = queries_P * keys_P
        lengths, first = torch.unique_consecutive(keys_P, return_inverse=True)
        sizes = torch.zeros_like(lengths).index_add(0, first, scores_P)
        runs = list(zip(sizes.tolist(), lengths.tolist(), strict=True))
        return cls(width, head, query_P, key_P, scores_P.cumsum(0) - scores_P, queries_P, keys_P, runs, order)

    @property
    def num_scores(self) -> int:
        """Of all sentences and heads."""
        return sum(size for size, _ in self.runs)

    def rows_of(self, scores: Tensor) -> Iterator[Tensor]:
        """The scores as matrices of equally long rows, one row for each query and head."""
        start = 0
        for size, keys in self.runs:
            yield scores[start : start + size].view(-1, keys)
            start += size

    def sentences_of(self, scores: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Sentences with equally many queries and keys, (R,), and their scores (R, A, queries, keys)."""
        first, num_heads = 0, self.width // self.head
        for rows in self.rows_of(scores):
            queries = int(self.queries_P[first * num_heads])
            sentences = rows.view(-1, num_heads, queries, rows.shape[1])
            yield self.order[first : first + len(sentences)], sentences
            first += len(sentences)

    def queries(self, values: Tensor) -> Operand:
        """Matrices (queries, head)."""
        return Operand(values, self.query_P, self.width)

    def keys(self, values: Tensor, transposed: bool = False) -> Operand:
        """Matrices (keys, head)."""
        return Operand(values, self.key_P, self.width, transposed)

    def scores(self, values: Tensor, transposed: bool = False) -> Operand:
        """Matrices (queries, keys)."""
        return Operand(values, self.score_P, self.keys_P, transposed)

    def heads_P(self) -> Tensor:
        """The size of a head, once for each product."""
        return torch.full_like(self.keys_P, self.head)


def can_pack(*operands: Tensor) -> bool:
    """Whether these can be multiplied as they lie."""
    return (
        not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu") and has_batched_products(*operands)
    )


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, packing: Packing, dropout_p: float, bias: Tensor | None = None
) -> Tensor:
    """What each token reads, (M, H).

    Args:
        query: of the tokens that read, (M, H), one head after the other.
        key, value: of those that are read, (T, H).
        packing: of the batch.
        dropout_p: the probability with which a weight is dropped.
        bias: added to the scores of the first queries and keys of each sentence, (S, 1, queries, keys) or with a
            matrix for each head; then a sentence has as many queries as others with as many keys.
    """
    read: Tensor = _PackedAttention.apply(query, key, value, bias, packing, dropout_p)  # type: ignore[no-untyped-call]
    return read


class _PackedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, packing: Packing, dropout_p: float
    ) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        weights, scale = query.new_empty(packing.num_scores), packing.head**-0.5
        sizes = (packing.queries_P, packing.keys_P, packing.heads_P())
        batched_products(
            packing.queries(query), packing.keys(key, transposed=True), packing.scores(weights), *sizes, scale
        )
        if bias is not None:
            for sentences, scores in packing.sentences_of(weights):
                scores += _corner(bias, scores).index_select(0, sentences)
        for rows in packing.rows_of(weights):
            torch.softmax(rows, -1, out=rows)
        scales = dropout_scales(weights, dropout_p) if dropout_p else None
        dropped = weights if scales is None else weights * scales
        read = torch.zeros_like(query)  # also where a sentence has no tokens to read
        sizes = (packing.queries_P, packing.heads_P(), packing.keys_P)
        batched_products(packing.scores(dropped), packing.keys(value), packing.queries(read), *sizes)
        ctx.save_for_backward(query, key, value, weights, scales)
        ctx.packing, ctx.bias_shape = packing, None if bias is None else bias.shape
        return read

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, scales = ctx.saved_tensors
        packing: Packing = ctx.packing
        grad, scale, heads_P = grad.contiguous(), packing.head**-0.5, packing.heads_P()
        dropped = weights if scales is None else weights * scales
        grad_query, grad_key, grad_value = (torch.zeros_like(of) for of in (query, key, value))
        by_key, by_query = (packing.keys_P, heads_P, packing.queries_P), (packing.queries_P, heads_P, packing.keys_P)
        batched_products(
            packing.scores(dropped, transposed=True), packing.queries(grad), packing.keys(grad_value), *by_key
        )
        grad_scores = torch.empty_like(weights)
        sizes = (packing.queries_P, packing.keys_P, heads_P)
        batched_products(
            packing.queries(grad), packing.keys(value, transposed=True), packing.scores(grad_scores), *sizes
        )
        if scales is not None:
            grad_scores.mul_(scales)
        for grad_rows, rows in zip(packing.rows_of(grad_scores), packing.rows_of(weights), strict=True):
            torch.ops.aten._softmax_backward_data.out(grad_rows, rows, -1, rows.dtype, grad_input=grad_rows)
        grad_bias = None
        if ctx.needs_input_grad[3]:
            grad_bias = grad_scores.new_zeros(ctx.bias_shape)
            for sentences, grads in packing.sentences_of(grad_scores):
                per_head = grads if len(grad_bias[0]) > 1 else grads.sum(1, keepdim=True)
                _corner(grad_bias, grads)[sentences] = per_head
        batched_products(packing.scores(grad_scores), packing.keys(key), packing.queries(grad_query), *by_query, scale)
        batched_products(
            packing.scores(grad_scores, transposed=True), packing.queries(query), packing.keys(grad_key), *by_key, scale
        )
        return grad_query, grad_key, grad_value, grad_bias, None, None


def _corner(bias: Tensor, scores: Tensor) -> Tensor:
    """What of each sentence's bias is added to scores (R, A, queries, keys)."""
    return bias[:, :, : scores.shape[2], : scores.shape[3]]
