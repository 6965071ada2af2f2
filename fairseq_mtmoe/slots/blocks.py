"""Stacks of blocks of any backbone: their slots and conditional parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.conditioning import (
    ALIGNMENT,
    ATTENTION,
    BOTTLENECK,
    NORM,
    ConditionalAlignment,
    ConditionalAttentionBias,
    ConditionalBottleneck,
    ConditionalLayerNorm,
    TaskEmbeddings,
    Tasks,
    block_width,
)
from fairseq_mtmoe.conditioning.options import conditional_parts, has_large_form
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.options import names_of_tasks
from fairseq_mtmoe.slots import AdapterPlan, BatchContext, Block, ExpertPlan

SlotPlans = Mapping[int, AdapterPlan | ExpertPlan]  # by the block's index in its stack


class Stack(nn.Module):
    """Mixin for a stack of blocks, which fills slots and holds conditional parts."""

    slot_plans: SlotPlans  # set before the first slot is filled
    filled_slots = 0  # number of blocks that `fill_slot` has handled
    # A conditional encoder has them; T5's stacks set neither of these two
    task_embeddings: TaskEmbeddings | None
    alignment: ConditionalAlignment | None  # before the first block

    def fill_slot(self, block: Block) -> Block:
        """Fill the slot of the next block as its plan says, and return the block."""
        plan = self.slot_plans.get(self.filled_slots)
        self.filled_slots += 1
        if plan is not None:
            plan.fill(block)
        return block

    def tasks_of(self, task_ids: LongTensor | None) -> Tasks | None:
        """Return all tasks' embeddings, or None if the stack has none.

        Raises `UserError`: no task ids.
        """
        if self.task_embeddings is None:
            return None
        if task_ids is None:
            raise UserError(
                "`task_ids` are None, but a model with conditional parts requires them."
            )
        tasks: Tasks = self.task_embeddings()
        return tasks

    def aligned(self, x: Tensor, context: BatchContext) -> Tensor:
        """Apply the alignment, if any, to the stream before the first block, (L, B, H)."""
        return x if self.alignment is None else self.alignment(x, context.tasks, context.task_ids)


@dataclass(frozen=True)
class Conditions:
    """Settings and builders of a model's conditional parts (CA-MTL, §2.1)."""

    parts: frozenset[str]  # some of `conditioning.PARTS`
    num_tasks: int  # K
    dim: int  # D, the size of a task's embedding
    positions: int  # number of positions for which conditional attention learns a bias
    is_large: bool = False  # whether an encoder has the large form

    @classmethod
    def of(cls, cfg: Any, dim: int) -> Conditions | None:
        """Return the conditional parts in a model's flat options, or None.

        Raises `UserError`: wrong options.
        """
        parts = conditional_parts(cfg)
        if not parts:
            return None
        sizes = len(names_of_tasks(cfg)), dim, cfg.conditional_positions
        return cls(parts, *sizes, has_large_form(cfg))

    def embeddings(self) -> TaskEmbeddings:
        """Build the table that all parts read."""
        return TaskEmbeddings(self.num_tasks, self.dim, transforms=self.parts != {ALIGNMENT})

    def alignment(self, width: int) -> ConditionalAlignment | None:
        """Build the alignment before the first block of a stack, or return None."""
        return ConditionalAlignment(self.dim, width) if ALIGNMENT in self.parts else None

    def attention_bias(self, width: int) -> ConditionalAttentionBias | None:
        """Build the bias of a block's self-attention scores, or return None."""
        if ATTENTION not in self.parts:
            return None
        width_of_block = block_width(self.positions, width)
        return ConditionalAttentionBias(self.dim, self.positions, width_of_block)

    def condition_norms(self, block: nn.Module, names: Iterable[str]) -> None:
        """Replace those of the named norms that a block has by conditional ones."""
        if NORM not in self.parts:
            return
        for name in names:
            if getattr(block, name, None) is not None:
                setattr(block, name, ConditionalLayerNorm.from_norm(getattr(block, name), self.dim))

    def bottleneck(self, width: int, eps: float = 1e-5) -> ConditionalBottleneck | None:
        """Build the last block's bottleneck with its own norm, or return None."""
        if BOTTLENECK not in self.parts:
            return None
        norm = nn.LayerNorm(width, eps)
        norm = ConditionalLayerNorm.from_norm(norm, self.dim) if NORM in self.parts else norm
        return ConditionalBottleneck(self.dim, width, begins_at_zero=True, norm=norm)
