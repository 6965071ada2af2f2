"""The transformer's stacks with blocks that adapt to each sentence's task: CA-MTL, §2.1, in encoder and decoder.

In both stacks self-attention is conditional in all blocks, norms in the upper half, alignment stands before the first
block, and a bottleneck is added to the last block's output, which it reads through a norm of its own. Of the decoder's
self-attention a word gets that part of its task's bias that is about the words before it; attention to the source has
none, since the places of source and target are not each other's neighbours. The encoder has the table of the tasks'
embeddings, and hands on with its output what the decoder needs of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from torch import LongTensor, Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fairseq_mtmoe.backbones.blocks import SlotPlans
from fairseq_mtmoe.backbones.translation.blocks import DecoderBlock, EncoderBlock, FairseqBlock
from fairseq_mtmoe.backbones.translation.decoding import STATE, BeamState
from fairseq_mtmoe.backbones.translation.stacks import Decoder, Encoder, FairseqStack
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
    block_width,
)
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.options.conditional import conditional_parts
from fairseq_mtmoe.options.tasks import names_of_tasks
from fairseq_mtmoe.slots import BatchContext

_NORMS = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")


@dataclass(frozen=True)
class Conditions:
    """What of the stacks is conditional.

    Attributes:
        parts: some of `conditioning.PARTS`.
        num_tasks: K.
        dim: D, the size of a task's embedding.
        positions: those whose bias conditional attention learns.
    """

    parts: frozenset[str]
    num_tasks: int
    dim: int
    positions: int

    @classmethod
    def of(cls, cfg: Any) -> Self | None:
        """Those of a model's flat options, with `ConditionalOptions`; None where nothing adapts to tasks.

        Raises:
            UserError: an option is out of its range, or does not go with conditional parts.
        """
        parts = conditional_parts(cfg)
        if not parts:
            return None
        for name in ("cross_self_attention", "offload_activations"):
            if getattr(cfg, name):
                raise_invalid(f"--{name.replace('_', '-')}", "off with --conditional", True)
        return cls(parts, len(names_of_tasks(cfg)), cfg.encoder_embed_dim, cfg.conditional_positions)


class ConditionalBlock(FairseqBlock):
    """Mixed into a block: the parts that it gets when it is built."""

    attention_bias: ConditionalAttentionBias | None
    bottleneck: ConditionalBottleneck | None
    embed_dim: int

    def become_conditional(self, conditions: Conditions, index: int, count: int) -> None:
        """Get what block `index` of `count` has."""
        parts, dim = conditions.parts, conditions.dim
        self.attention_bias = self.bottleneck = None
        if ATTENTION in parts:
            width = block_width(conditions.positions, self.embed_dim)
            self.attention_bias = ConditionalAttentionBias(dim, conditions.positions, width)
        if NORM in parts and index >= count // 2:
            for name in _NORMS:
                norm = getattr(self, name, None)
                if norm is not None:
                    setattr(self, name, ConditionalLayerNorm.from_norm(norm, dim))
        if BOTTLENECK in parts and index == count - 1:
            own_norm = nn.LayerNorm(self.embed_dim)
            if NORM in parts:
                own_norm = ConditionalLayerNorm.from_norm(own_norm, dim)
            self.bottleneck = ConditionalBottleneck(dim, self.embed_dim, begins_at_zero=True, norm=own_norm)

    def with_bottleneck(self, h: Tensor, context: BatchContext) -> Tensor:
        """The block's output (L, B, H), and what the bottleneck makes of it."""
        if self.bottleneck is None:
            return h
        added: Tensor = self.bottleneck(h, context.tasks, context.task_ids)
        return h + added

    def bias_of(self, x: Tensor, context: BatchContext) -> Tensor | None:
        """What is added to the scores of self-attention among the words of `x` (L, B, H), (B·A, L, L)."""
        if self.attention_bias is None:
            return None
        before = context.prompt_length  # these have no places, and no bias
        mask = context.padding_mask
        places = None if mask is None else places_of(mask[:, before:])
        bias_B1LL: Tensor = self.attention_bias(context.tasks, context.task_ids, len(x) - before, places)
        bias_B1LL = F.pad(bias_B1LL, (before, 0, before, 0)) if before else bias_B1LL
        return bias_B1LL.expand(-1, self.self_attn.num_heads, -1, -1).flatten(0, 1)


def places_of(padding_mask: Tensor) -> LongTensor:
    """The place of each token in its sentence, wherever padding is, (B, L); any at padding."""
    places: LongTensor = ((~padding_mask).cumsum(1) - 1).clamp(min=0)  # type: ignore[assignment]
    return places


class ConditionalEncoderBlock(ConditionalBlock, EncoderBlock):
    """The encoder's."""

    def forward(self, x: Tensor, context: BatchContext, attn_mask: Tensor | None = None) -> Tensor:
        """As `EncoderBlock`'s."""
        return self.with_bottleneck(super().forward(x, context, attn_mask), context)

    def attend(
        self, x: Tensor, context: BatchContext, attn_mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """As `EncoderBlock`'s, with the task's bias."""
        assert bias is None
        return super().attend(x, context, attn_mask, self.bias_of(x, context))


class ConditionalDecoderBlock(ConditionalBlock, DecoderBlock):
    """The decoder's."""

    def forward(
        self, x: Tensor, context: BatchContext, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, None]:
        """As `DecoderBlock`'s."""
        h, attention, none = super().forward(x, context, *args, **kwargs)
        return self.with_bottleneck(h, context), attention, none

    def attend(
        self,
        x: Tensor,
        context: BatchContext,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        self_attn_mask: Tensor | None = None,
    ) -> Tensor:
        """As `DecoderBlock`'s, with the task's bias."""
        if incremental_state is None:
            bias = self.bias_of(x, context)
        else:
            bias = self._bias_of_word(context, incremental_state[STATE])
        mask = bias if self_attn_mask is None or bias is None else self_attn_mask + bias
        mask = self_attn_mask if mask is None else mask
        return super().attend(x, context, encoder_out, encoder_padding_mask, incremental_state, mask)

    def _bias_of_word(self, context: BatchContext, state: BeamState) -> Tensor | None:
        """The same for the word that is being read, of which the words so far are looked at: (S, L)."""
        if self.attention_bias is None:
            return None
        assert context.tasks is not None and context.task_ids is not None
        bias_KL = self.attention_bias.row_of_tasks(context.tasks, state.length - 1)
        return bias_KL.index_select(0, context.task_ids[:: state.beam])


class ConditionalStack(FairseqStack):
    """Mixed into a stack of such blocks."""

    conditions: Conditions
    alignment: ConditionalAlignment | None

    def fill_next(self, block: FairseqBlock, cfg: TransformerConfig) -> Any:
        """As `FairseqStack`'s; what computes blocks again in the backward pass gives tasks' embeddings gradients."""
        self.fill_slot(block)
        if cfg.checkpoint_activations:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return fsdp_wrap(block, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)

    def align_with(self, size: int) -> None:
        """Get what stands before the first block, if anything does; `size` is its width."""
        self.alignment = ConditionalAlignment(self.conditions.dim, size) if ALIGNMENT in self.conditions.parts else None

    def before_blocks(self, x: Tensor, context: BatchContext) -> Tensor:
        """The embeddings (L, B, H), aligned."""
        if self.alignment is None:
            return x
        aligned: Tensor = self.alignment(x, context.tasks, context.task_ids)
        return aligned


class ConditionalEncoder(ConditionalStack, Encoder):
    """The encoder; a model without conditional parts has all of its other parameters."""

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Any,
        embed_tokens: nn.Module,
        slot_plans: SlotPlans,
        conditions: Conditions,
    ) -> None:
        self.conditions = conditions
        super().__init__(cfg, dictionary, embed_tokens, slot_plans)
        has_map = conditions.parts != {ALIGNMENT}
        self.task_embeddings = TaskEmbeddings(conditions.num_tasks, conditions.dim, transforms=has_map)
        self.align_with(cfg.encoder.embed_dim)

    def build_encoder_layer(self, cfg: TransformerConfig) -> Any:
        """Called by fairseq."""
        block = ConditionalEncoderBlock(cfg)
        block.become_conditional(self.conditions, self.filled_slots, cfg.encoder.layers)
        return self.fill_next(block, cfg)

    def context_of(self, task_ids: LongTensor | None, padding_mask: Tensor | None) -> BatchContext:
        """With the tasks' embeddings.

        Raises:
            UserError: nobody says which tasks the sentences are of.
        """
        if task_ids is None:
            raise UserError("`task_ids` must be given to a model that adapts to tasks, but are None instead.")
        return BatchContext(task_ids, padding_mask, tasks=self.task_embeddings())


class ConditionalDecoder(ConditionalStack, Decoder):
    """The decoder."""

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Any,
        embed_tokens: nn.Module,
        slot_plans: SlotPlans,
        conditions: Conditions,
        no_encoder_attn: bool = False,
    ) -> None:
        self.conditions = conditions
        super().__init__(cfg, dictionary, embed_tokens, slot_plans, no_encoder_attn)
        self.align_with(cfg.decoder.embed_dim)

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> Any:
        """Called by fairseq."""
        block = ConditionalDecoderBlock(cfg, no_encoder_attn)
        block.become_conditional(self.conditions, self.filled_slots, cfg.decoder.layers)
        return self.fill_next(block, cfg)
