"""PEMT on T5, BERT, RoBERTa and translators.

Implements "PEMT: Multi-Task Correlation Guided Mixture-of-Experts Enables Parameter-Efficient
Transfer Learning", §3.

The paper puts the prompt before the tokens of T5, whose positions are relative. Here BERT has the
prompt after the tokens, and a translator before the words. In both, prompt vectors have no
positions, so that tokens keep their pretrained ones. In a translator a source task is a language
pair.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
from fairseq.models import register_model
from torch import LongTensor, Tensor
from torch.nn import functional as F

from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.core.options import names_of_tasks
from fairseq_mtmoe.core.sizes import register_sizes
from fairseq_mtmoe.nlu.bert import model as bert
from fairseq_mtmoe.nlu.bert.encoder import BertEncoder, Encoded
from fairseq_mtmoe.nlu.bert.heads import heads_from_text
from fairseq_mtmoe.nlu.bert.unpadding import UnpaddedBatch, unpadded
from fairseq_mtmoe.nlu.t5 import model as t5
from fairseq_mtmoe.nlu.t5.stacks import T5Decoder, T5Encoder
from fairseq_mtmoe.pemt.base_model import (
    EncoderForGatedDecoder,
    GatedDecoder,
    PemtModel,
    PromptMixin,
    adapter_plan,
)
from fairseq_mtmoe.pemt.config import PemtBertConfig, PemtT5Config, PemtTranslationConfig
from fairseq_mtmoe.pemt.sources import load_sources
from fairseq_mtmoe.slots import SPARSITY, BatchContext, task_sparsity_loss
from fairseq_mtmoe.translation.model.model import SIZES, Transformer, conditions_of
from fairseq_mtmoe.translation.model.stacks import Decoder, Encoder


class PemtT5Encoder(EncoderForGatedDecoder, T5Encoder):
    """T5's encoder with a prompt, whose blocks may have adapters."""

    def embed(
        self, src_tokens: LongTensor, task_ids: LongTensor | None
    ) -> tuple[Tensor, BatchContext]:
        """Embed as `T5Encoder`, with the prompt before the text.

        Positions count from its first vector.
        """
        x = self.embed_tokens(src_tokens.t())
        padding_mask = src_tokens.eq(self.config.pad_token_id)
        prompt_PH = self.prompt_of_pass()
        if prompt_PH is not None:
            x = torch.cat([prompt_PH.to(x.dtype).unsqueeze(1).expand(-1, x.shape[1], -1), x])
            padding_mask = F.pad(padding_mask, (len(prompt_PH), 0))
        adapter_pass = self.adapter_pass_of(prompt_PH, padding_mask)
        context = BatchContext(task_ids, padding_mask, adapter_pass=adapter_pass)
        return self.dropout_module(x), context


class PemtT5Decoder(GatedDecoder, T5Decoder):
    """T5's decoder, whose gates read the encoder's output."""

    def context_of(self, words: Tensor, encoder_out: dict[str, Any]) -> BatchContext:
        """Return `T5Decoder`'s context, with padding for the task sparsity loss."""
        context = super().context_of(words, encoder_out)
        if context.adapter_pass is None or not context.adapter_pass.wants_similarities:
            return context
        # A shorter text in a batch also reads its end token, after which it predicts nothing
        padding_mask = words.eq(self.config.pad_token_id) | words.eq(self.config.eos_token_id)
        padding_mask[:, 0] = False  # T5 starts texts with its padding token
        return replace(context, padding_mask=padding_mask)


@register_model("pemt_t5", dataclass=PemtT5Config)
class PemtT5Model(PemtModel, t5.T5Model):
    """A T5 that learns a source task, or a target task with transfer from sources."""

    encoder_class: ClassVar[type[T5Encoder]] = PemtT5Encoder
    decoder_class: ClassVar[type[T5Decoder]] = PemtT5Decoder

    @classmethod
    def build_model(cls, cfg: PemtT5Config, task: Any) -> PemtT5Model:
        """Build the model for fairseq.

        Raises `UserError` if an option or a source file is wrong.
        """
        loaded_sources = load_sources(cfg, task)
        config = t5.t5_config(cfg)
        plan = adapter_plan(cfg, loaded_sources.metadata, config.d_model)
        blocks = range(max(config.num_layers, config.num_decoder_layers))
        model = cls(config, task.target_dictionary, dict.fromkeys(blocks, plan))
        model.finish_building(cfg, loaded_sources)
        t5.begin(model, task)
        return model


class PemtBertEncoder(PromptMixin, BertEncoder):
    """BERT's or RoBERTa's encoder with a prompt, whose blocks may have adapters."""

    def extend(
        self, x: Tensor, context: BatchContext, batch: UnpaddedBatch, padding_mask: Tensor
    ) -> tuple[Tensor, BatchContext, UnpaddedBatch]:
        """Put the prompt after each sentence, and add the gates' input to the context.

        The prompt is embedded as tokens of the first type without positions.
        """
        num_sentences, length = padding_mask.shape
        prompt_PH = self.prompt_of_pass()
        if prompt_PH is not None:
            embedded_BLH = batch.pad(x)
            segments = self.embed_segments.weight
            x_PH = self.layernorm_embedding(prompt_PH.to(segments) + segments[0])
            prompts_BPH = self.dropout_module(x_PH.expand(num_sentences, -1, -1))
            padding_mask = F.pad(padding_mask, (0, len(prompt_PH)))
            batch = unpadded(padding_mask, batch.task_ids)
            x = batch.unpad(torch.cat([embedded_BLH, prompts_BPH], 1))
            context = batch.context()
        adapter_pass = self.adapter_pass_of(prompt_PH, padding_mask, first=length)
        if adapter_pass is not None and batch.packed:
            adapter_pass = replace(adapter_pass, sentences=batch.sentences())
            summary = adapter_pass.summary
            if callable(summary):
                adapter_pass = replace(
                    adapter_pass, summary=lambda x: summary(batch.pad(x).transpose(0, 1))
                )
        return x, replace(context, adapter_pass=adapter_pass), batch


@register_model("pemt_bert", dataclass=PemtBertConfig)
class PemtBertModel(PemtModel, bert.EncoderModel):
    """An encoder that learns a source task, or a target with transfer from sources.

    Heads train in both stages.
    """

    @classmethod
    def build_model(cls, cfg: PemtBertConfig, task: Any) -> PemtBertModel:
        """Build the model for fairseq.

        Raises `UserError` if an option or source file is wrong or tasks are several.
        """
        config = bert.encoder_config(cfg)
        loaded_sources = load_sources(cfg, task)
        if bert.frozen_blocks(cfg, config.num_hidden_layers):
            raise_invalid(
                "--freeze-layers", "left out with PEMT, which freezes all blocks", cfg.freeze_layers
            )
        plan = adapter_plan(cfg, loaded_sources.metadata, config.hidden_size)
        plans = dict.fromkeys(range(config.num_hidden_layers), plan)
        encoder = PemtBertEncoder(config, plans, cfg.checkpoint_activations)
        model = cls(encoder, heads_from_text(cfg.heads))
        model.finish_building(cfg, loaded_sources)
        pretrained = bert.pretrained_state(task)
        if pretrained:
            weights = {f"encoder.{name}": value for name, value in pretrained.items()}
            model.load_state_dict(weights, strict=False)  # without heads
        return model

    def extra(self, encoded: Encoded) -> dict[str, Tensor]:
        """Return the task sparsity loss in training, if it is wanted."""
        if encoded.adapter_pass is None or not encoded.adapter_pass.wants_similarities:
            return {}
        return {SPARSITY: task_sparsity_loss([encoded.adapter_pass])}


class PromptedEncoder(EncoderForGatedDecoder, Encoder):
    """A translator's encoder with a prompt, whose blocks may have adapters."""

    layernorm_embedding: Any

    def embed(
        self, src_tokens: Tensor, task_ids: LongTensor | None
    ) -> tuple[Tensor, BatchContext, Tensor]:
        """Embed as `Encoder`, with the prompt before the words, which has no positions."""
        x, context, embedded = super().embed(src_tokens, task_ids)
        padding_mask = src_tokens.eq(self.padding_idx)
        prompt_PH = self.prompt_of_pass()
        if prompt_PH is not None:
            vectors = prompt_PH.to(x.dtype).unsqueeze(1).expand(-1, x.shape[1], -1)
            if self.layernorm_embedding is not None:
                vectors = self.layernorm_embedding(vectors)
            x = torch.cat([self.dropout_module(vectors), x])
            padding_mask = F.pad(padding_mask, (len(prompt_PH), 0))
        context = replace(
            context,
            padding_mask=None if context.padding_mask is None else padding_mask,
            prompt_length=len(x) - src_tokens.shape[1],
            adapter_pass=self.adapter_pass_of(prompt_PH, padding_mask),
        )
        return x, context, embedded


class GuidedDecoder(GatedDecoder, Decoder):
    """A translator's decoder, whose gates read the encoder's output."""


@register_model("pemt_translation", dataclass=PemtTranslationConfig)
class PemtTranslationModel(PemtModel, Transformer):
    """A dense translator of one language pair, with transfer from other pairs.

    Its weights come from `--finetune-from-model`.
    """

    encoder_class: ClassVar[type[Encoder]] = PromptedEncoder
    decoder_class: ClassVar[type[Decoder]] = GuidedDecoder
    task_names: list[str]  # indexed by task id; empty without conditional parts

    @classmethod
    def build_model(cls, cfg: PemtTranslationConfig, task: Any) -> PemtTranslationModel:
        """Build the model for fairseq.

        Raises `UserError` if an option or source file is wrong or pairs are several.
        """
        no_recomputing = ("checkpoint_activations", "offload_activations")
        for name in ("cross_self_attention", "quant_noise_pq", "base_layers", *no_recomputing):
            if getattr(cfg, name):
                raise UserError(f"`{flag(name)}` cannot be combined with PEMT.")
        loaded_sources = load_sources(cfg, task)
        conditions = conditions_of(cfg)
        plan = adapter_plan(cfg, loaded_sources.metadata, cfg.encoder_embed_dim)
        plans = dict.fromkeys(range(max(cfg.encoder_layers, cfg.decoder_layers)), plan)
        model = cls.build_with_slots(cfg, task, plans, conditions)
        model.task_names = names_of_tasks(cfg) if conditions is not None else []
        model.finish_building(cfg, loaded_sources)
        return model

    def prompt_embeddings(self) -> Tensor:
        """Return the embeddings of all tokens, scaled as in the encoder, (V, H)."""
        encoder: Any = self.encoder
        scaled: Tensor = encoder.embed_scale * encoder.embed_tokens.weight
        return scaled


register_sizes("pemt_t5", t5.PUBLISHED)
register_sizes("pemt_bert", {"minilm": bert.MINILM, "base": bert.BASE, "large": bert.LARGE})
register_sizes("pemt_translation", SIZES)
