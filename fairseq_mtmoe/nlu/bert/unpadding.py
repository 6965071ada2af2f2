"""Select the tokens of a padded batch that the blocks compute.

On a CPU the stream is packed: it has only real tokens, (1, T, H). Slots see each token as a
sentence of length 1 with its own task id. On other devices the stream has all positions, (L, B, H),
so that the host need not wait for a count. Only attention needs sentences, (B, L, …).

If only [CLS], each sentence's first token, is read after the last block, this block computes
nothing else, (1, B, H).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import LongTensor, Tensor

from fairseq_mtmoe.conditioning import Tasks
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.slots import BatchContext

# Added to scores of padding: its weight is 0 in every dtype, and rows of padding only stay finite.
HIDDEN = -1e4


@dataclass(frozen=True)
class UnpaddedBatch:
    """The tokens of a batch that are in the stream: all, or packed without padding."""

    shape: tuple[int, int]  # B and L
    padding_mask: Tensor | None  # True at padding, (B, L); None without padding
    task_ids: LongTensor | None = None  # of the sentences, (B,); None if the model needs none
    packed: bool = False  # the stream is (1, T, H)
    # Index of each token among the B·L positions; None without padding.
    indices_T: Tensor | None = None
    # Index of the token at each position, arbitrary at padding, (B·L,).
    inverse_P: Tensor | None = None
    firsts_only: bool = False  # the block outputs only each sentence's first token

    def unpad(self, values: Tensor) -> Tensor:
        """Convert values to the stream's form: (B, L, …) to (L, B, …) or (1, T, …)."""
        if not self.packed:
            return values.transpose(0, 1)
        values = values.flatten(0, 1)
        if self.indices_T is not None:
            values = values.index_select(0, self.indices_T)
        return values.unsqueeze(0)

    def pad(self, values: Tensor) -> Tensor:
        """Convert the stream to values by position, (B, L, …), arbitrary at padding."""
        if not self.packed:
            return values.transpose(0, 1)
        values = values.squeeze(0)
        if self.inverse_P is not None:
            values = values.index_select(0, self.inverse_P)
        return values.view(*self.shape, *values.shape[1:])

    def sentences(self) -> Tensor:
        """Return the sentence of each token of a packed stream, (T,)."""
        return self.unpad(torch.arange(self.shape[0]).unsqueeze(1).expand(self.shape)).squeeze(0)

    def context(self, tasks: Tasks | None = None) -> BatchContext:
        """Return the blocks' context; `tasks` has all tasks' embeddings."""
        task_ids: Tensor | None = self.task_ids
        if self.packed and task_ids is not None:
            task_ids = task_ids.index_select(0, self.sentences())
        counts = TokenCounts()  # torch.compile cannot call the field's factory
        padding_mask = None if self.packed else self.padding_mask
        return BatchContext(task_ids, padding_mask, counts, tasks)  # type: ignore[arg-type]

    def lengths(self) -> Tensor:
        """Return the number of tokens of each sentence in a packed stream, (B,)."""
        if self.padding_mask is None:
            return torch.full((self.shape[0],), self.shape[1])
        return (~self.padding_mask).sum(1)

    @cached_property
    def pads_right(self) -> bool:
        """Return whether no token comes after padding; only on a CPU."""
        mask = self.padding_mask
        return mask is None or not bool((mask[:, :-1] & ~mask[:, 1:]).any())

    @property
    def output(self) -> UnpaddedBatch:
        """Return the batch of a block's output, which may have only first tokens."""
        return UnpaddedBatch((self.shape[0], 1), None, self.task_ids) if self.firsts_only else self

    def output_of(self, x: Tensor) -> Tensor:
        """Return the tokens of a block's input that its output has.

        x: (L, B, H) or (1, T, H).
        """
        if not self.firsts_only:
            return x
        if not self.packed:
            return x[:1]
        if self.inverse_P is None:
            return x.view(*self.shape, -1)[:, 0].unsqueeze(0)
        return x.index_select(1, self.inverse_P[:: self.shape[1]])

    def output_context(self, context: BatchContext) -> BatchContext:
        """Return the context of a block's output."""
        return self.output.context(context.tasks) if self.firsts_only else context


def unpadded(padding_mask: Tensor, task_ids: LongTensor | None = None) -> UnpaddedBatch:
    """Return the batch with a `padding_mask` (B, L), True at padding, and task ids."""
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
