"""The place of a block's feed-forward layer, what may stand in it, and what a forward pass tells it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.conditioning import Tasks
from fairseq_mtmoe.moe.mixture import AdapterMixture
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.slots.mixture_pass import MixturePass


class SlotBlock(nn.Module, ABC):
    """What slots know of a block. Every backbone's blocks are of this class, dense or not.

    The parameters of what stands in a slot are the block's own, under the names that checkpoints have: `fc1` and `fc2`,
    the feed-forward layer that the block was built with; what takes their place, such as `moe`; or what stands beside
    them, such as `mixture`.
    """

    slot: Slot
    fc1: nn.Linear
    fc2: nn.Linear
    activation_fn: Callable[[Tensor], Tensor]
    activation_dropout_module: Any  # a dropout of probability `p`
    mixture: AdapterMixture  # of a block with adapters

    @abstractmethod
    def inner(self, branch_input: Tensor) -> Tensor:
        """The inner activations of the feed-forward layer that the block was built with, (L, B, H) to (L, B, F)."""

    def dense_branch(self, branch_input: Tensor) -> Tensor:
        """The feed-forward layer that the block was built with, (L, B, H) to (L, B, H)."""
        output: Tensor = self.fc2(self.inner(branch_input))
        return output


class Slot(Protocol):
    """What stands in the place of a block's feed-forward layer."""

    def __call__(self, block: SlotBlock, hidden: Tensor, branch_input: Tensor, context: BatchContext) -> Tensor:
        """The branch's output, before dropout and residual connection.

        Args:
            block: whose slot it is.
            hidden: the residual stream, (L, B, H).
            branch_input: what the feed-forward layer would read, the stream or its norm, (L, B, H).
            context: of this pass.
        """


class SlotPlan(Protocol):
    """What is to stand in a block's slot."""

    def fill(self, block: SlotBlock) -> None:
        """Put it there, when the block is built."""


def dense(block: SlotBlock, hidden: Tensor, branch_input: Tensor, context: BatchContext) -> Tensor:
    """The slot of a dense block, which all blocks begin with."""
    return block.dense_branch(branch_input)


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


def takes(model: Any, name: str) -> bool:
    """Whether a model, inside whatever wraps it for several processes, has an input of this name."""
    return name in inspect.signature(unwrapped(model).forward).parameters


def unwrapped(model: Any) -> Any:
    """A model without what wraps it for several processes."""
    while hasattr(model, "module"):
        model = model.module
    return model
