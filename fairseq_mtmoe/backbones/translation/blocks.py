"""fairseq's transformer blocks with a slot for experts.

A block starts with the feed-forward layer that fairseq gives it, and keeps fairseq's parameter names: dense checkpoints
fit. `sparsify` puts a mixture of experts in the layer's place.
"""

from typing import Any, List, Optional, Tuple

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.backbones.translation.decoding import BeamAttention, shares_beams
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.slots import ExpertSlot, SlotPlan


class SparseEncoderLayer(ExpertSlot, TransformerEncoderLayerBase):
    """fairseq's encoder block with an expert slot."""

    def __init__(self, cfg: TransformerConfig, plan: SlotPlan, token_counts: TokenCounts) -> None:
        super().__init__(cfg)
        self.plan_experts(plan, token_counts)

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Optional[Tensor],
        attn_mask: Optional[Tensor] = None,
        task_ids: Optional[LongTensor] = None,
    ) -> Tensor:
        """As fairseq's, with `task_ids` (B,) for task gates. Shapes: x (L, B, H), mask (B, L)."""
        if self.moe is None:
            return super().forward(x, encoder_padding_mask, attn_mask)
        if attn_mask is not None:
            attn_mask = attn_mask.masked_fill(attn_mask.bool(), -1e8 if x.dtype == torch.float32 else -1e4)
        query = self.self_attn_layer_norm(x) if self.normalize_before else x
        attended, _ = self.self_attn(
            query, query, query, key_padding_mask=encoder_padding_mask, need_weights=False, attn_mask=attn_mask
        )
        h = self.residual_connection(self.dropout_module(attended), x)
        if not self.normalize_before:
            h = self.self_attn_layer_norm(h)
        return self.experts_branch(h, encoder_padding_mask, task_ids)


class DecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder block, whose attention shares between the hypotheses of a sentence what they have in common."""

    def __init__(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> None:
        super().__init__(cfg, no_encoder_attn)
        for dropout in (self.dropout_module, self.activation_dropout_module):
            dropout.module_name = TransformerDecoderLayerBase.__name__  # what `--retain-dropout-modules` calls it

    def build_self_attention(
        self, embed_dim: int, cfg: TransformerConfig, add_bias_kv: bool = False, add_zero_attn: bool = False
    ) -> nn.Module:
        """Called by fairseq."""
        if not shares_beams(cfg):
            return super().build_self_attention(embed_dim, cfg, add_bias_kv, add_zero_attn)
        return BeamAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            dropout=cfg.attention_dropout,
            self_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
            xformers_att_config=cfg.decoder.xformers_att_config,
        )

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> nn.Module:
        """Called by fairseq."""
        if not shares_beams(cfg):
            return super().build_encoder_attention(embed_dim, cfg)
        return BeamAttention(
            embed_dim,
            cfg.decoder.attention_heads,
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            dropout=cfg.attention_dropout,
            encoder_decoder_attention=True,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
            xformers_att_config=cfg.encoder.xformers_att_config,
        )


class SparseDecoderLayer(ExpertSlot, DecoderLayer):
    """fairseq's decoder block with an expert slot."""

    def __init__(
        self, cfg: TransformerConfig, plan: SlotPlan, token_counts: TokenCounts, no_encoder_attn: bool = False
    ) -> None:
        super().__init__(cfg, no_encoder_attn)
        self.plan_experts(plan, token_counts)

    def forward(
        self,
        x: Tensor,
        encoder_out: Optional[Tensor] = None,
        encoder_padding_mask: Optional[Tensor] = None,
        incremental_state: Optional[dict] = None,
        prev_self_attn_state: Optional[List[Tensor]] = None,
        prev_attn_state: Optional[List[Tensor]] = None,
        self_attn_mask: Optional[Tensor] = None,
        self_attn_padding_mask: Optional[Tensor] = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
        task_ids: Optional[LongTensor] = None,
    ) -> Tuple[Tensor, Optional[Tensor], None]:
        """As fairseq's, with `task_ids` (B,) for task gates. Shapes: x (L, B, H), masks (B, L)."""
        if self.moe is None:
            return super().forward(
                x, encoder_out, encoder_padding_mask, incremental_state, prev_self_attn_state, prev_attn_state,
                self_attn_mask, self_attn_padding_mask, need_attn, need_head_weights,
            )  # fmt: skip
        # These two are fairseq's ONNX export only, which the slots do not offer.
        assert prev_self_attn_state is None and prev_attn_state is None
        query = self.self_attn_layer_norm(x) if self.normalize_before else x
        attended, attention = self.self_attn(
            query, query, query, key_padding_mask=self_attn_padding_mask, incremental_state=incremental_state,
            need_weights=False, attn_mask=self_attn_mask,
        )  # fmt: skip
        h = self.residual_connection(self.dropout_module(attended), x)
        if not self.normalize_before:
            h = self.self_attn_layer_norm(h)
        if self.encoder_attn is not None and encoder_out is not None:
            need_attn = need_attn or need_head_weights or (not self.training and self.need_attn)
            h, attention = self._read_source(
                h, encoder_out, encoder_padding_mask, incremental_state, need_attn, need_head_weights
            )
        return self.experts_branch(h, self_attn_padding_mask, task_ids), attention, None

    def _read_source(
        self,
        h: Tensor,
        encoder_out: Tensor,
        encoder_padding_mask: Optional[Tensor],
        incremental_state: Optional[dict],
        need_attn: bool,
        need_head_weights: bool,
    ) -> Tuple[Tensor, Optional[Tensor]]:
        """Attend to the encoder's output (S, B, H); returns the new residual stream and the attention weights."""
        query = self.encoder_attn_layer_norm(h) if self.normalize_before else h
        read, attention = self.encoder_attn(
            query=query, key=encoder_out, value=encoder_out, key_padding_mask=encoder_padding_mask,
            incremental_state=incremental_state, static_kv=True, need_weights=need_attn,
            need_head_weights=need_head_weights,
        )  # fmt: skip
        h = self.residual_connection(self.dropout_module(read), h)
        return (h if self.normalize_before else self.encoder_attn_layer_norm(h)), attention


def wrap_block(block: nn.Module, cfg: Any) -> nn.Module:
    """Activation checkpointing and full sharding around a block, under the conditions that fairseq sets for its own."""
    if cfg.checkpoint_activations:
        block = checkpoint_wrapper(block, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(block, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)
