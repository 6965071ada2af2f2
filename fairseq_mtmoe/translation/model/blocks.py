"""fairseq's transformer blocks, split into `attend` and `feed_forward`.

Parameters have fairseq's names and a dense block computes what fairseq's computes, so that dense
checkpoints fit. fairseq's code for ONNX export is left out.

Blocks can adapt to each sentence's task as in CA-MTL, §2.1: self-attention in all blocks, norms in
the upper half, and a bottleneck that adds to the last block's output. Attention to the source has
no bias, because target and source positions are not neighbours.
"""

from typing import TYPE_CHECKING, Any

import torch
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import (
    TransformerDecoderLayerBase,
    TransformerEncoderLayerBase,
)
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.slots import BatchContext, Block
from fairseq_mtmoe.slots.blocks import Conditions
from fairseq_mtmoe.translation.model.beam_attention import STATE, BeamAttention, BeamState

_NORMS = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")


class FairseqBlock(Block):
    """Common part of both stacks' blocks, a mixin for fairseq's."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of fairseq's blocks, which are not typed."""

    def begin_as(self, fairseq_name: str, cfg: TransformerConfig) -> None:
        """Become a dense block.

        `--retain-dropout-modules` finds its dropouts under fairseq's name of the block.
        """
        self.begin_dense()
        # For "swish" fairseq returns a module class instead of a function
        if cfg.activation_fn == "swish":
            self.activation_fn = F.silu
        for dropout in (self.dropout_module, self.activation_dropout_module):
            dropout.module_name = fairseq_name

    def become_conditional(self, conditions: Conditions, index: int, count: int) -> None:
        """Add the conditional parts of block `index` of `count`."""
        self.attention_bias = conditions.attention_bias(self.embed_dim)
        if index >= count // 2:
            conditions.condition_norms(self, _NORMS)
        self.bottleneck = conditions.bottleneck(self.embed_dim) if index == count - 1 else None

    def bias_of(self, x: Tensor, context: BatchContext) -> Tensor | None:
        """Return the tasks' bias of self-attention scores for `x` (L, B, H), (B·A, L, L).

        None without conditional attention.
        """
        if self.attention_bias is None:
            return None
        before = context.prompt_length  # prompt vectors have no positions and no bias
        positions = None
        if context.padding_mask is not None:  # padding may be on any side
            is_token = ~context.padding_mask[:, before:]
            positions = (is_token.cumsum(1) - 1).clamp(min=0)
        bias_B1LL: Tensor = self.attention_bias(
            context.tasks, context.task_ids, len(x) - before, positions
        )
        if before:
            bias_B1LL = F.pad(bias_B1LL, (before, 0, before, 0))
        return bias_B1LL.expand(-1, self.self_attn.num_heads, -1, -1).flatten(0, 1)


class EncoderBlock(FairseqBlock, TransformerEncoderLayerBase):
    """fairseq's encoder block with a slot."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self.begin_as(TransformerEncoderLayerBase.__name__, cfg)

    def forward(self, x: Tensor, context: BatchContext) -> Tensor:
        """Return the new residual stream, (L, B, H)."""
        return self.feed_forward(self.attend(x, context), context)

    def attend(self, x: Tensor, context: BatchContext) -> Tensor:
        """Compute the block's first half, self-attention."""
        query = self.before(self.self_attn_layer_norm, x, context)
        attended, _ = self.self_attn(
            query,
            query,
            query,
            key_padding_mask=context.padding_mask,
            need_weights=False,
            attn_mask=self.bias_of(x, context),
        )
        return self.after(self.self_attn_layer_norm, attended, x, context)


class DecoderBlock(FairseqBlock, TransformerDecoderLayerBase):
    """fairseq's decoder block with a slot.

    A sentence's hypotheses share keys and values.
    """

    def __init__(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, no_encoder_attn)
        self.begin_as(TransformerDecoderLayerBase.__name__, cfg)

    def forward(
        self,
        x: Tensor,
        context: BatchContext,
        encoder_out: Tensor | None,
        encoder_padding_mask: Tensor | None,
        incremental_state: dict[str, Any] | None,
        self_attn_mask: Tensor | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the new residual stream, and the attention to the source or None.

        Args:
            x: the residual stream, (L, B, H).
            context: with the target's padding.
            encoder_out, encoder_padding_mask: the encoder's output (S, B, H), and True at its
                padding, (B, S).
            incremental_state: fairseq's state of a search.
            self_attn_mask: added to the scores of self-attention, (L, L).
            need_weights: return each head's attention weights, (A, B, L, S).
        """
        h = self.attend(
            x, context, encoder_out, encoder_padding_mask, incremental_state, self_attn_mask
        )
        attention = None
        if self.encoder_attn is not None and encoder_out is not None:
            h, attention = self.attend_to_source(
                h, context, encoder_out, encoder_padding_mask, incremental_state, need_weights
            )
        return self.feed_forward(h, context), attention

    def attend(
        self,
        x: Tensor,
        context: BatchContext,
        encoder_out: Tensor | None,
        encoder_padding_mask: Tensor | None,
        incremental_state: dict[str, Any] | None,
        self_attn_mask: Tensor | None,
    ) -> Tensor:
        """Compute self-attention.

        With `--cross-self-attention` it also attends to the source.
        """
        if incremental_state is None:
            bias = self.bias_of(x, context)
        else:
            bias = self._bias_of_word(context, incremental_state)
        if bias is not None:
            self_attn_mask = bias if self_attn_mask is None else self_attn_mask + bias
        query = keys = self.before(self.self_attn_layer_norm, x, context)
        padding_mask = context.padding_mask
        has_source_keys = "prev_key" in self.self_attn._get_input_buffer(incremental_state)
        if self.cross_self_attention and not has_source_keys:
            assert encoder_out is not None and encoder_padding_mask is not None
            assert padding_mask is not None
            keys = torch.cat((encoder_out, query))
            padding_mask = torch.cat((encoder_padding_mask, padding_mask), dim=1)
            if self_attn_mask is not None:
                source_mask = query.new_zeros(len(query), len(encoder_out))
                self_attn_mask = torch.cat((source_mask, self_attn_mask), dim=1)
        attended, _ = self.self_attn(
            query,
            keys,
            keys,
            key_padding_mask=padding_mask,
            incremental_state=incremental_state,
            need_weights=False,
            attn_mask=self_attn_mask,
        )
        return self.after(self.self_attn_layer_norm, attended, x, context)

    def attend_to_source(
        self,
        h: Tensor,
        context: BatchContext,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor | None,
        incremental_state: dict[str, Any] | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute attention to the source.

        Return the new residual stream (L, B, H) and attention weights, which fairseq also computes
        in evaluation.
        """
        read, attention = self.encoder_attn(
            query=self.before(self.encoder_attn_layer_norm, h, context),
            key=encoder_out,
            value=encoder_out,
            key_padding_mask=encoder_padding_mask,
            incremental_state=incremental_state,
            static_kv=True,
            need_weights=need_weights or (not self.training and self.need_attn),
            need_head_weights=need_weights,
        )
        return self.after(self.encoder_attn_layer_norm, read, h, context), attention

    def _bias_of_word(
        self, context: BatchContext, incremental_state: dict[str, Any]
    ) -> Tensor | None:
        """Return the tasks' bias of the current word's scores of all words so far, (S, L)."""
        if self.attention_bias is None:
            return None
        assert context.tasks is not None and context.task_ids is not None
        state: BeamState = incremental_state[STATE]
        bias_KL = self.attention_bias.row_of_tasks(context.tasks, state.length - 1)
        return bias_KL.index_select(0, context.task_ids[:: state.beam])

    def build_self_attention(self, *args: Any, **options: Any) -> Any:
        """Build self-attention for fairseq."""
        return self._in_beams(super().build_self_attention(*args, **options))

    def build_encoder_attention(self, *args: Any) -> Any:
        """Build attention to the source for fairseq."""
        return self._in_beams(super().build_encoder_attention(*args))

    def _in_beams(self, attention: Any) -> Any:
        """Return fairseq's attention, which decodes with a `BeamState` if it can."""
        if not self.cross_self_attention:
            attention.__class__ = BeamAttention
        return attention
