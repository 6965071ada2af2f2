"""fairseq's transformer blocks, written once with the seams `attend` and `feed_forward`.

A block's forward pass is these two, whatever stands in its slot: dense and sparse blocks go through the same lines.
Parameters have fairseq's names, and a block with its own feed-forward layer computes what fairseq's does: dense
checkpoints fit. What fairseq does for its export to ONNX alone is left out.
"""

from __future__ import annotations

from typing import Any

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_mtmoe.backbones.blocks import Block
from fairseq_mtmoe.backbones.translation.decoding import BeamAttention, shares_beams
from fairseq_mtmoe.slots import BatchContext, dense


class FairseqBlock(Block):
    """What the blocks of both stacks have in common; mixed into fairseq's."""

    # fairseq's, which has no types
    self_attn: Any
    self_attn_layer_norm: Any

    def begin_dense(self, fairseq_name: str) -> None:
        """The slot holds fairseq's layer; `--retain-dropout-modules` calls the block by its name in fairseq."""
        self.slot = dense
        for dropout in (self.dropout_module, self.activation_dropout_module):
            dropout.module_name = fairseq_name


class EncoderBlock(FairseqBlock, TransformerEncoderLayerBase):
    """fairseq's encoder block with a slot."""

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        self.begin_dense(TransformerEncoderLayerBase.__name__)

    def forward(self, x: Tensor, context: BatchContext, attn_mask: Tensor | None = None) -> Tensor:
        """Shapes: x (L, B, H), attn_mask (L, L), where what is not 0 hides."""
        h = self.attend(x, context, attn_mask)
        return self.feed_forward(h, context)

    def attend(
        self, x: Tensor, context: BatchContext, attn_mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """The block's first half: self-attention, to whose scores `bias` is added, (B·A, L, L)."""
        if attn_mask is not None:  # a word may have nothing to look at, of which -inf would make NaN
            attn_mask = attn_mask.masked_fill(attn_mask.bool(), -1e8 if x.dtype == torch.float32 else -1e4)
        if bias is not None:
            attn_mask = bias if attn_mask is None else attn_mask + bias
        query = self.normalize(self.self_attn_layer_norm, x, context) if self.normalize_before else x
        attended, _ = self.self_attn(
            query, query, query, key_padding_mask=context.padding_mask, need_weights=False, attn_mask=attn_mask
        )
        h = self.join(attended, x)
        return h if self.normalize_before else self.normalize(self.self_attn_layer_norm, h, context)


class DecoderBlock(FairseqBlock, TransformerDecoderLayerBase):
    """fairseq's decoder block with a slot.

    Its attention shares between the hypotheses of a sentence what they have in common.
    """

    encoder_attn: Any
    encoder_attn_layer_norm: Any
    cross_self_attention: bool
    need_attn: bool
    quant_noise: float
    quant_noise_block_size: int

    def __init__(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, no_encoder_attn)
        self.begin_dense(TransformerDecoderLayerBase.__name__)

    def forward(
        self,
        x: Tensor,
        context: BatchContext,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        self_attn_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, None]:
        """The new residual stream; the attention to the source if it is wanted, or always in evaluation; and None.

        fairseq's own BASE layers, which may stand between the blocks, return three of them, too.

        Args:
            x: the residual stream, (L, B, H).
            context: of this pass; its padding is the target's.
            encoder_out, encoder_padding_mask: the encoder's output (S, B, H), and True at its padding, (B, S).
            incremental_state: fairseq's, while a translation grows word by word.
            self_attn_mask: what is added to the scores of self-attention, (L, L) or (B·A, L, L); while a translation
                grows word by word, to those of its words so far, (S, L).
            need_attn, need_head_weights: return attention weights, (B, L, S), or each head's, (A, B, L, S).
        """
        h = self.attend(x, context, encoder_out, encoder_padding_mask, incremental_state, self_attn_mask)
        attention = None
        if self.encoder_attn is not None and encoder_out is not None:
            need_attn = need_attn or need_head_weights or (not self.training and self.need_attn)
            h, attention = self.attend_to_source(
                h, context, encoder_out, encoder_padding_mask, incremental_state, need_attn, need_head_weights
            )
        return self.feed_forward(h, context), attention, None

    def attend(
        self,
        x: Tensor,
        context: BatchContext,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        self_attn_mask: Tensor | None = None,
    ) -> Tensor:
        """The block's first part: self-attention; with `--cross-self-attention`, to the source as well."""
        query = keys = self.normalize(self.self_attn_layer_norm, x, context) if self.normalize_before else x
        padding_mask = context.padding_mask
        if self.cross_self_attention and not self._remembers_source(incremental_state):
            assert encoder_out is not None
            keys = torch.cat((encoder_out, query))
            if self_attn_mask is not None:
                self_attn_mask = torch.cat((query.new_zeros(len(query), len(encoder_out)), self_attn_mask), dim=1)
            if padding_mask is not None:
                if encoder_padding_mask is None:
                    encoder_padding_mask = padding_mask.new_zeros(encoder_out.shape[1], len(encoder_out))
                padding_mask = torch.cat((encoder_padding_mask, padding_mask), dim=1)
        attended, _ = self.self_attn(
            query, keys, keys, key_padding_mask=padding_mask, incremental_state=incremental_state,
            need_weights=False, attn_mask=self_attn_mask,
        )  # fmt: skip
        h = self.join(attended, x)
        return h if self.normalize_before else self.normalize(self.self_attn_layer_norm, h, context)

    def attend_to_source(
        self,
        h: Tensor,
        context: BatchContext,
        encoder_out: Tensor,
        encoder_padding_mask: Tensor | None,
        incremental_state: dict[str, Any] | None,
        need_attn: bool,
        need_head_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """The block's middle part: the new residual stream (L, B, H), and the attention weights."""
        query = self.normalize(self.encoder_attn_layer_norm, h, context) if self.normalize_before else h
        read, attention = self.encoder_attn(
            query=query, key=encoder_out, value=encoder_out, key_padding_mask=encoder_padding_mask,
            incremental_state=incremental_state, static_kv=True, need_weights=need_attn,
            need_head_weights=need_head_weights,
        )  # fmt: skip
        h = self.join(read, h)
        return h if self.normalize_before else self.normalize(self.encoder_attn_layer_norm, h, context), attention

    def _remembers_source(self, incremental_state: dict[str, Any] | None) -> bool:
        """Whether keys of the source are in self-attention's memory already."""
        return incremental_state is not None and "prev_key" in self.self_attn._get_input_buffer(incremental_state)

    def build_self_attention(
        self, embed_dim: int, cfg: TransformerConfig, add_bias_kv: bool = False, add_zero_attn: bool = False
    ) -> Any:
        """Called by fairseq."""
        if not shares_beams(cfg):
            return super().build_self_attention(embed_dim, cfg, add_bias_kv, add_zero_attn)
        return self._beam_attention(embed_dim, cfg, cfg.decoder.xformers_att_config, self_attention=True)

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> Any:
        """Called by fairseq."""
        if not shares_beams(cfg):
            return super().build_encoder_attention(embed_dim, cfg)
        sizes = {"kdim": cfg.encoder.embed_dim, "vdim": cfg.encoder.embed_dim, "encoder_decoder_attention": True}
        return self._beam_attention(embed_dim, cfg, cfg.encoder.xformers_att_config, **sizes)

    def _beam_attention(self, embed_dim: int, cfg: TransformerConfig, xformers: Any, **kind: Any) -> BeamAttention:
        noise = {"q_noise": self.quant_noise, "qn_block_size": self.quant_noise_block_size}
        heads, dropout = cfg.decoder.attention_heads, cfg.attention_dropout
        return BeamAttention(embed_dim, heads, dropout=dropout, xformers_att_config=xformers, **noise, **kind)


def wrap_block(block: nn.Module, cfg: Any) -> Any:
    """Activation checkpointing and full sharding around a block, under the conditions that fairseq sets for its own."""
    if cfg.checkpoint_activations:
        block = checkpoint_wrapper(block, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(block, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)
