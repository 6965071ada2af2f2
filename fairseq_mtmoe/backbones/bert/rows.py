"""The places of a padded batch in which the blocks compute.

All but attention treats every token by itself, so padding need cost nothing there. On a CPU the blocks' stream has the
real tokens alone, (1, T, H): to what stands in their slots, each token is a sentence of length 1, with its own task id.
Elsewhere it has all places, (L, B, H), so that nothing waits for a count. Only attention needs sentences, (B, L, …).

What comes after the last block may ask for the first token's state of each sentence alone, [CLS]. Then the others'
need not be computed there: the last block's tokens are all read, but only the first ones read and go on, (1, B, H).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import LongTensor, Tensor

from fairseq_mtmoe.conditioning import Tasks
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.slots import BatchContext

HIDDEN = -1e4  # added to the scores of padding: its weight is 0 in every type, and a row of nothing else is finite


@dataclass(frozen=True)
class Rows:
    """Which tokens of the batch the stream has: all, or those that are no padding, one sentence after the other.

    Attributes:
        shape: B and L.
        padding_mask: True at padding, (B, L); None without padding.
        packed: the stream is (1, T, H).
        place_T: the place of each token of the stream among the B·L; None where it has all.
        token_P: the reverse: which token of the stream is in each place, any at padding, (B·L,).
        firsts_only: the block's output is that of each sentence's first token.
    """

    shape: tuple[int, int]
    padding_mask: Tensor | None
    packed: bool = False
    place_T: Tensor | None = None
    token_P: Tensor | None = None
    firsts_only: bool = False

    def take(self, values: Tensor) -> Tensor:
        """The stream's part of what there is for each place: (B, L, …) to (L, B, …) or (1, T, …)."""
        if not self.packed:
            return values.transpose(0, 1)
        values = values.flatten(0, 1)
        return (values if self.place_T is None else values.index_select(0, self.place_T)).unsqueeze(0)

    def spread(self, values: Tensor) -> Tensor:
        """The reverse: (L, B, …) or (1, T, …) to (B, L, …); at padding is anything."""
        if not self.packed:
            return values.transpose(0, 1)
        values = values.squeeze(0)
        return (values if self.token_P is None else values.index_select(0, self.token_P)).view(
            *self.shape, *values.shape[1:]
        )

    def sentences(self) -> Tensor:
        """Of which sentence each token of a packed stream is, (T,)."""
        numbers_B1 = torch.arange(self.shape[0]).unsqueeze(1)
        return self.take(numbers_B1.expand(self.shape)).squeeze(0)

    def context(self, task_ids: LongTensor | None, tasks: Tasks | None = None) -> BatchContext:
        """What blocks may know of the stream; `task_ids` (B,) are the sentences', `tasks` the embeddings of all."""
        counts = TokenCounts()  # here, since torch.compile cannot call the field's factory
        if not self.packed:
            return BatchContext(task_ids, self.padding_mask, counts, tasks)
        if task_ids is not None:
            task_ids = task_ids.index_select(0, self.sentences())  # type: ignore[assignment]
        return BatchContext(task_ids, None, counts, tasks)

    def attention_mask(self, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores of keys, (B, 1, 1, L); None where nothing is hidden."""
        if self.padding_mask is None:
            return None
        return self.padding_mask[:, None, None].to(dtype) * HIDDEN

    def lengths(self) -> Tensor:
        """How many tokens of each sentence a packed stream has, (B,)."""
        if self.padding_mask is None:
            return torch.full((self.shape[0],), self.shape[1])
        return (~self.padding_mask).sum(1)

    @cached_property
    def pads_right(self) -> bool:
        """Whether no token comes after padding; on a CPU."""
        mask = self.padding_mask
        return mask is None or not bool((mask[:, :-1] & ~mask[:, 1:]).any())

    def task_ids_of_sentences(self, context: BatchContext) -> LongTensor:
        """The sentences' task ids again, (B,), of those that the stream has."""
        assert context.task_ids is not None
        if not self.packed:
            return context.task_ids
        starts = (lengths := self.lengths()).cumsum(0) - lengths
        of_sentences: LongTensor = context.task_ids[starts.clamp_(max=len(context.task_ids) - 1)]  # type: ignore[assignment]
        return of_sentences

    # ---- the last block ----

    def for_firsts(self) -> Rows:
        """The rows of a block that computes the first tokens alone."""
        return replace(self, firsts_only=True)

    @property
    def output(self) -> Rows:
        """The rows of what a block gives: (1, B, H) of first tokens."""
        return Rows((self.shape[0], 1), None) if self.firsts_only else self

    def output_of(self, x: Tensor) -> Tensor:
        """The tokens of a block's input, (L, B, H) or (1, T, H), that are its output's."""
        if not self.firsts_only:
            return x
        if not self.packed:
            return x[:1]
        if self.token_P is None:
            return x.view(*self.shape, -1)[:, 0].unsqueeze(0)
        return x.index_select(1, self.token_P[:: self.shape[1]])

    def output_context(self, context: BatchContext) -> BatchContext:
        """What blocks may know of these tokens."""
        if not self.firsts_only:
            return context
        task_ids = context.task_ids
        if self.packed and task_ids is not None:
            task_ids = self.output_of(task_ids.view(1, -1, 1)).flatten()  # type: ignore[assignment]
        return BatchContext(task_ids, None, TokenCounts(), context.tasks)


def rows_of(padding_mask: Tensor) -> Rows:
    """The rows of a batch whose `padding_mask` (B, L) is True at padding."""
    shape = (padding_mask.shape[0], padding_mask.shape[1])
    if padding_mask.device.type != "cpu" or torch.compiler.is_compiling():
        return Rows(shape, padding_mask)
    place_T = (~padding_mask).flatten().nonzero().squeeze(1)
    if len(place_T) == padding_mask.numel():
        return Rows(shape, None, packed=True)
    if not len(place_T):
        return Rows(shape, padding_mask)
    token_P = place_T.new_zeros(padding_mask.numel())
    token_P[place_T] = torch.arange(len(place_T))
    return Rows(shape, padding_mask, True, place_T, token_P)
