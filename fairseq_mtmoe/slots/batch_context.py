"""What the blocks of a stack may need to know of the batch that passes through it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import LongTensor, Tensor

from fairseq_mtmoe.conditioning import Tasks
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.slots.mixture_pass import MixturePass


@dataclass(frozen=True)
class BatchContext:
    """Made anew for each pass through a stack, and an argument of every block: nothing of it outlives the pass.

    fairseq's activation checkpointing keeps an argument that is no tensor as it is, and gives it to the block again in
    the backward pass. So a block is computed again in the context of its own pass. Under that option gradients of its
    tensors would be lost: those of `tasks` reach their parameters only where blocks are recomputed otherwise, as in
    `backbones/bert/`.

    Attributes:
        task_ids: each sentence's task, (B,), long; None where tasks are not told apart.
        padding_mask: True at padding, (B, L); None without padding.
        tasks: the embeddings of all tasks in this pass, for conditional modules; None in a model without.
        mixture: what gates of adapters read, and what is left there of them; None in a model without such gates.
        prompt_length: how many of the first positions are no words, but a prompt of all sentences.
        token_counts: what the first layer that asks learns of the other processes' batches, for those after it.
    """

    task_ids: LongTensor | None = None
    padding_mask: Tensor | None = None
    token_counts: TokenCounts = field(default_factory=TokenCounts)
    tasks: Tasks | None = None
    mixture: MixturePass | None = None
    prompt_length: int = 0
