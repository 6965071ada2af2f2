"""The places of a padded batch in which the blocks compute.

All but attention treats every token by itself, so padding need cost nothing there. On a CPU the blocks' stream has the
real tokens alone, (1, T, H): to what stands in their slots, each token is a sentence of length 1, with its own task id.
Elsewhere it has all places, (L, B, H), so that nothing waits for a count. Only attention needs sentences, (B, L, …).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import LongTensor, Tensor

from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.slots import BatchContext

HIDDEN = -1e4  # added to the scores of padding: its weight is 0 in every type, and a row of nothing else is finite


@dataclass(frozen=True)
class Rows:
    """Which tokens of the batch the stream has: all, or those at `place_T`.

    Attributes:
        shape: B and L.
        padding_mask: True at padding, (B, L); None without padding.
        place_T: the place of each token of the stream among the B·L; None where it has all.
        token_P: the reverse: which token of the stream is in each place, any at padding, (B·L,).
    """

    shape: tuple[int, int]
    padding_mask: Tensor | None
    place_T: Tensor | None = None
    token_P: Tensor | None = None

    def take(self, values: Tensor) -> Tensor:
        """The stream's part of what there is for each place: (B, L, …) to (L, B, …) or (1, T, …)."""
        if self.place_T is None:
            return values.transpose(0, 1)
        return values.flatten(0, 1).index_select(0, self.place_T).unsqueeze(0)

    def spread(self, values: Tensor) -> Tensor:
        """The reverse: (L, B, …) or (1, T, …) to (B, L, …); at padding is anything."""
        if self.token_P is None:
            return values.transpose(0, 1)
        return values.squeeze(0).index_select(0, self.token_P).view(*self.shape, *values.shape[2:])

    def context(self, task_ids: LongTensor | None) -> BatchContext:
        """What slots may know of the stream; `task_ids` (B,) are the sentences'."""
        counts = TokenCounts()  # here, since torch.compile cannot call the field's factory
        if self.place_T is None:
            return BatchContext(task_ids, self.padding_mask, counts)
        if task_ids is not None:
            task_ids = self.take(task_ids.unsqueeze(1).expand(self.shape)).squeeze(0)  # type: ignore[assignment]
        return BatchContext(task_ids, None, counts)

    def attention_mask(self, dtype: torch.dtype) -> Tensor | None:
        """What is added to the scores of keys, (B, 1, 1, L); None where nothing is hidden."""
        if self.padding_mask is None:
            return None
        return self.padding_mask[:, None, None].to(dtype) * HIDDEN


def rows_of(padding_mask: Tensor) -> Rows:
    """The rows of a batch whose `padding_mask` (B, L) is True at padding."""
    shape = (padding_mask.shape[0], padding_mask.shape[1])
    if padding_mask.device.type != "cpu" or torch.compiler.is_compiling():
        return Rows(shape, padding_mask)
    place_T = (~padding_mask).flatten().nonzero().squeeze(1)
    if len(place_T) == padding_mask.numel():
        return Rows(shape, None)
    if not len(place_T):
        return Rows(shape, padding_mask)
    token_P = place_T.new_zeros(padding_mask.numel())
    token_P[place_T] = torch.arange(len(place_T))
    return Rows(shape, padding_mask, place_T, token_P)
