"""What the blocks of all backbones share: the feed-forward half with its slot, and how a stack fills slots in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fairseq_mtmoe.conditioning import apply_norm
from fairseq_mtmoe.slots import BatchContext, SlotBlock, SlotPlan

SlotPlans = Mapping[int, SlotPlan]  # a block's index in its stack to what stands in its slot


class Block(SlotBlock):
    """A block whose second half is what stands in its slot; dense and sparse blocks go through the same lines."""

    # Modules of the backbone's own kind
    normalize_before: bool
    final_layer_norm: Any
    dropout_module: Any

    def feed_forward(self, h: Tensor, context: BatchContext) -> Tensor:
        """The block's second half: the residual stream `h` (L, B, H) plus the branch of the slot."""
        branch_input = self.normalize(self.final_layer_norm, h, context) if self.normalize_before else h
        h = self.join(self.slot(self, h, branch_input, context), h)
        output = h if self.normalize_before else self.normalize(self.final_layer_norm, h, context)
        if context.mixture is not None:
            context.mixture.see_output(self, output, context.padding_mask)
        return output

    def normalize(self, norm: nn.Module, x: Tensor, context: BatchContext) -> Tensor:
        """`x` (L, B, H) after one of the block's norms, which may be a `ConditionalLayerNorm`."""
        return apply_norm(norm, x, context.tasks, context.task_ids)

    def inner(self, branch_input: Tensor) -> Tensor:
        """What the feed-forward layer's second matrix reads: (L, B, H) to (L, B, F)."""
        inner: Tensor = self.activation_dropout_module(self.activation_fn(self.fc1(branch_input)))
        return inner

    def join(self, branch: Tensor, h: Tensor) -> Tensor:
        """The residual stream after a branch of it, which dropout thins out."""
        thinned: Tensor = self.dropout_module(branch)
        return h + thinned


class Stack(nn.Module):
    """Mixed into what holds a stack of blocks: fills their slots, in order.

    Attributes:
        filled_slots: how many blocks had their turn.
    """

    slot_plans: SlotPlans
    filled_slots: int

    def start_stack(self, slot_plans: SlotPlans) -> None:
        """To be called before the first slot is filled."""
        self.slot_plans = slot_plans
        self.filled_slots = 0

    def fill_slot(self, block: Block) -> None:
        """Put into the next block's slot what its plan says."""
        plan = self.slot_plans.get(self.filled_slots)
        self.filled_slots += 1
        if plan is not None:
            plan.fill(block)
