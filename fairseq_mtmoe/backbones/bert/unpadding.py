"""The tokens of a padded batch that the blocks compute.

On a CPU the blocks' stream has the real tokens alone, (1, T, H): to what stands in their slots, each token is a
sentence of length 1, with its own task id. Elsewhere it has all positions, (L, B, H), so that nothing waits for a
count. Only attention needs sentences, (B, L, …).

Where [CLS], each sentence's first token, is all that is read after the last block, it computes that alone, (1, B, H).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import LongTensor, Tensor

from fairseq_mtmoe.conditioning import Tasks
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.slots import BatchContext

HIDDEN = -1e4  # added to the scores of padding: its weight is 0 in every type, and a row of nothing else is finite


@dataclass(frozen=True)
class UnpaddedBatch:
    """Which tokens of a batch the stream has: all, or those that are no padding, one sentence after the other."""

    shape: tuple[int, int]  # B and L
    padding_mask: Tensor | None  # True at padding, (B, L); None without padding
    task_ids: LongTensor | None = None  # of the sentences, (B,); None where tasks are not told apart
    packed: bool = False  # the stream is (1, T, H)
    indices_T: Tensor | None = None  # the index of each token of the stream among the B·L; None where it has all
    inverse_P: Tensor | None = None  # the reverse: the token of the stream at each position, any at padding, (B·L,)
    firsts_only: bool = False  # the block's output is that of each sentence's first token

    def unpad(self, values: Tensor) -> Tensor:
        """The stream's part of what there is for each position: (B, L, …) to (L, B, …) or (1, T, …)."""
        if not self.packed:
            return values.transpose(0, 1)
        values = values.flatten(0, 1)
        return (values if self.indices_T is None else values.index_select(0, self.indices_T)).unsqueeze(0)

    def pad(self, values: Tensor) -> Tensor:
        """The reverse: (L, B, …) or (1, T, …) to (B, L, …); at padding is anything."""
        if not self.packed:
            return values.transpose(0, 1)
        values = values.squeeze(0)
        values = values if self.inverse_P is None else values.index_select(0, self.inverse_P)
        return values.view(*self.shape, *values.shape[1:])

    def sentences(self) -> Tensor:
        """The sentence of each token of a packed stream, (T,)."""
        return self.unpad(torch.arange(self.shape[0]).unsqueeze(1).expand(self.shape)).squeeze(0)

    def context(self, tasks: Tasks | None = None) -> BatchContext:
        """What blocks may know of the stream; `tasks` are the embeddings of all."""
        task_ids: Tensor | None = self.task_ids
        if self.packed and task_ids is not None:
            task_ids = task_ids.index_select(0, self.sentences())
        counts = TokenCounts()  # here, since torch.compile cannot call the field's factory
        return BatchContext(task_ids, None if self.packed else self.padding_mask, counts, tasks)  # type: ignore[arg-type]

    def lengths(self) -> Tensor:
        """The number of tokens of each sentence in a packed stream, (B,)."""
        if self.padding_mask is None:
            return torch.full((self.shape[0],), self.shape[1])
        return (~self.padding_mask).sum(1)

    @cached_property
    def pads_right(self) -> bool:
        """Whether no token comes after padding; on a CPU."""
        mask = self.padding_mask
        return mask is None or not bool((mask[:, :-1] & ~mask[:, 1:]).any())

    @property
    def output(self) -> UnpaddedBatch:
        """The batch that a block gives, (1, B, H) of first tokens."""
        return UnpaddedBatch((self.shape[0], 1), None, self.task_ids) if self.firsts_only else self

    def output_of(self, x: Tensor) -> Tensor:
        """The tokens of a block's input, (L, B, H) or (1, T, H), that are its output's."""
        if not self.firsts_only:
            return x
        if not self.packed:
            return x[:1]
        if self.inverse_P is None:
            return x.view(*self.shape, -1)[:, 0].unsqueeze(0)
        return x.index_select(1, self.inverse_P[:: self.shape[1]])

    def output_context(self, context: BatchContext) -> BatchContext:
        """What blocks may know of these tokens."""
        return self.output.context(context.tasks) if self.firsts_only else context


def unpadded(padding_mask: Tensor, task_ids: LongTensor | None = None) -> UnpaddedBatch:
    """The batch whose `padding_mask` (B, L) is True at padding, of sentences of these tasks (B,)."""
    shape = (padding_mask.shape[0], padding_mask.shape[1])
    if padding_mask.device.type != "cpu" or torch.compiler.is_compiling():
        return UnpaddedBatch(shape, padding_mask, task_ids)
    indices_T = (~padding_mask).flatten().nonzero().squeeze(1)
    if len(indices_T) == padding_mask.numel():
        return UnpaddedBatch(shape, None, task_ids, packed=True)
    if not len(indices_T):
        return UnpaddedBatch(shape, padding_mask, task_ids)
    inverse_P = indices_T.new_zeros(padding_mask.numel())
    inverse_P[indices_T] = torch.arange(len(indices_T))
    return UnpaddedBatch(shape, padding_mask, task_ids, True, indices_T, inverse_P)
