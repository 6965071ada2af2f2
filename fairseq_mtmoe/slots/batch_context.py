"""What the blocks of a stack may need to know of the batch that passes through it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import LongTensor, Tensor

from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts


@dataclass(frozen=True)
class BatchContext:
    """Made anew for each pass through a stack, and an argument of every block: nothing of it outlives the pass.

    fairseq's activation checkpointing keeps an argument that is no tensor as it is, and gives it to the block again in
    the backward pass. So a block is computed again in the context of its own pass. Its tensors must need no gradients,
    which would be lost there.

    Attributes:
        task_ids: each sentence's task, (B,), long; None where tasks are not told apart.
        padding_mask: True at padding, (B, L); None without padding.
        token_counts: what the first layer that asks learns of the other processes' batches, for those after it.
    """

    task_ids: LongTensor | None = None
    padding_mask: Tensor | None = None
    token_counts: TokenCounts = field(default_factory=TokenCounts)
