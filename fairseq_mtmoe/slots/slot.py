"""The place of a block's feed-forward layer, and what may stand in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

from fairseq_mtmoe.moe.mixture import AdapterMixture
from fairseq_mtmoe.slots.batch_context import BatchContext


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
