"""What the blocks of all backbones share: the feed-forward half with its slot, slots of a stack, CA-MTL's parts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

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
    apply_norm,
    block_width,
)
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.slots import BatchContext, SlotBlock, SlotPlan, dense

SlotPlans = Mapping[int, SlotPlan]  # a block's index in its stack to what stands in its slot
AnyBlock = TypeVar("AnyBlock", bound=SlotBlock)


class Block(SlotBlock):
    """A block whose second half is what stands in its slot; dense and sparse blocks go through the same lines."""

    # Modules of the backbone's own kind
    normalize_before: bool
    final_layer_norm: Any
    dropout_module: Any

    def begin_dense(self) -> None:
        """Be a dense block that adapts to no tasks; to be called when it is built."""
        self.slot = dense
        self.attention_bias: ConditionalAttentionBias | None = None  # of the scores of self-attention
        self.bottleneck: ConditionalBottleneck | None = None  # added to the block's output

    def feed_forward(self, h: Tensor, context: BatchContext) -> Tensor:
        """The block's second half: the residual stream `h` (L, B, H) plus the branch of the slot."""
        branch_input = self.normalize(self.final_layer_norm, h, context) if self.normalize_before else h
        h = self.join(self.slot(self, h, branch_input, context), h)
        return h if self.normalize_before else self.normalize(self.final_layer_norm, h, context)

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

    def with_bottleneck(self, h: Tensor, context: BatchContext) -> Tensor:
        """The block's output (L, B, H), and what its bottleneck makes of it."""
        return h if self.bottleneck is None else h + self.bottleneck(h, context.tasks, context.task_ids)


class Stack(nn.Module):
    """Mixed into what holds a stack of blocks: fills their slots, in order; knows what adapts the stack to tasks."""

    slot_plans: SlotPlans  # to be set before the first slot is filled
    filled_slots = 0  # number of blocks that had their turn
    task_embeddings: TaskEmbeddings | None  # of an encoder that adapts to tasks; T5's stacks do not set these two
    alignment: ConditionalAlignment | None  # before the first block

    def fill_slot(self, block: AnyBlock) -> AnyBlock:
        """The next block, with what its plan puts into its slot."""
        plan = self.slot_plans.get(self.filled_slots)
        self.filled_slots += 1
        if plan is not None:
            plan.fill(block)
        return block

    def tasks_of(self, task_ids: LongTensor | None) -> Tasks | None:
        """All tasks' embeddings, if the stack adapts to them. Raises `UserError` where sentences have no task ids."""
        if self.task_embeddings is not None and task_ids is None:
            raise UserError("`task_ids` must be given to a model that adapts to tasks, but are None instead.")
        return None if self.task_embeddings is None else self.task_embeddings()

    def aligned(self, x: Tensor, context: BatchContext) -> Tensor:
        """The stream before the first block, (L, B, H)."""
        return x if self.alignment is None else self.alignment(x, context.tasks, context.task_ids)


@dataclass(frozen=True)
class Conditions:
    """The parts of a model that adapt to tasks: CA-MTL, §2.1."""

    parts: frozenset[str]  # some of `conditioning.PARTS`
    num_tasks: int  # K
    dim: int  # D, the size of a task's embedding
    positions: int  # those whose bias conditional attention learns
    is_large: bool = False  # whether an encoder has the large form

    def embeddings(self) -> TaskEmbeddings:
        """The table that all parts read."""
        return TaskEmbeddings(self.num_tasks, self.dim, transforms=self.parts != {ALIGNMENT})

    def alignment(self, width: int) -> ConditionalAlignment | None:
        """What stands before the first block of a stack of this width."""
        return ConditionalAlignment(self.dim, width) if ALIGNMENT in self.parts else None

    def attention_bias(self, width: int) -> ConditionalAttentionBias | None:
        """What a block adds to the scores of its self-attention."""
        if ATTENTION not in self.parts:
            return None
        return ConditionalAttentionBias(self.dim, self.positions, block_width(self.positions, width))

    def condition_norms(self, block: nn.Module, names: Iterable[str]) -> None:
        """Let those of a block's norms that it has adapt to tasks."""
        for name in names if NORM in self.parts else ():
            if getattr(block, name, None) is not None:
                setattr(block, name, ConditionalLayerNorm.from_norm(getattr(block, name), self.dim))

    def bottleneck(self, width: int, eps: float = 1e-5) -> ConditionalBottleneck | None:
        """What is added to the last block's output, which it reads through a norm of its own."""
        if BOTTLENECK not in self.parts:
            return None
        norm = nn.LayerNorm(width, eps)
        norm = ConditionalLayerNorm.from_norm(norm, self.dim) if NORM in self.parts else norm
        return ConditionalBottleneck(self.dim, width, begins_at_zero=True, norm=norm)
