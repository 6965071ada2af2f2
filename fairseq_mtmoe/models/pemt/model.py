"""PEMT on T5, on BERT and RoBERTa, and on translators: adapters of source tasks, mixed by what the target shares.

Implements "PEMT: Multi-Task Correlation Guided Mixture-of-Experts Enables Parameter-Efficient Transfer Learning", §3.

The paper has a prompt before the tokens of T5, whose positions are relative. In BERT it stands beside the tokens: its
vectors have no places, and attention reads all in any order. So tokens keep the places that they were pretrained with,
[CLS] is the first of them, and heads find words and passages where they are without a prompt. In a translator the
prompt stands before the words, which keep their places, too; a source task is a language pair.
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import replace
from typing import Any

import torch
from fairseq.models import BaseFairseqModel, register_model
from torch import LongTensor, Tensor
from torch.nn import functional as F

from fairseq_mtmoe.backbones.bert.encoder import BertEncoder, Encoded
from fairseq_mtmoe.backbones.bert.heads import HEADS, heads_from_text
from fairseq_mtmoe.backbones.bert.model import EncoderModel, encoder_config, frozen_blocks, pretrained_state
from fairseq_mtmoe.backbones.bert.unpadding import UnpaddedBatch, unpadded
from fairseq_mtmoe.backbones.t5.model import T5Model, begin, t5_config
from fairseq_mtmoe.backbones.t5.stacks import T5Decoder, T5Encoder
from fairseq_mtmoe.backbones.translation.conditional import ConditionalDecoder, ConditionalEncoder, conditions_of
from fairseq_mtmoe.backbones.translation.model import Transformer
from fairseq_mtmoe.backbones.translation.stacks import Decoder, Encoder
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.models.pemt.base_model import PemtModel, adapter_plan, load_sources
from fairseq_mtmoe.models.pemt.config import PemtBertConfig, PemtT5Config, PemtTranslationConfig
from fairseq_mtmoe.models.pemt.prompts import (
    Prompted,
    of_decoder,
    prepended,
    with_passes,
    with_selected,
    with_sparsity,
)
from fairseq_mtmoe.options.tasks import names_of_tasks
from fairseq_mtmoe.options.transformer import nested_options
from fairseq_mtmoe.slots import SPARSITY, BatchContext, MixturePass, task_sparsity_loss


class PemtT5Encoder(Prompted, T5Encoder):
    """T5's encoder, whose blocks may have adapters."""

    def embed(self, src_tokens: LongTensor, task_ids: LongTensor | None) -> tuple[Tensor, BatchContext]:
        """See `T5Encoder`; the prompt is part of the stream, and places are counted from its first vector."""
        x, padding_mask = self.embed_tokens(src_tokens.t()), src_tokens.eq(self.config.pad_token_id)
        prompt = self.prompt_of_pass()
        if prompt is not None:
            x, padding_mask = prepended(prompt, x, padding_mask)
        mixture = self.mixture_of(prompt, padding_mask)
        return self.dropout_module(x), BatchContext(task_ids, padding_mask, mixture=mixture)

    def encoded(self, states: Tensor, context: BatchContext) -> dict[str, list[Any]]:
        """See `T5Encoder`; with the pass that was, and the decoder's."""
        return with_passes(super().encoded(states, context), states, context)

    def select(self, encoder_out: dict[str, Any], sentences: Tensor) -> dict[str, Any]:
        """See `T5Encoder`."""
        return with_selected(super().select(encoder_out, sentences), encoder_out, sentences)


class PemtT5Decoder(T5Decoder):
    """T5's decoder, whose gates read what the encoder says."""

    def context_of(self, words: Tensor, encoder_out: dict[str, Any]) -> BatchContext:
        """See `T5Decoder`; where the task sparsity loss is wanted it tells padding, too."""
        context, mixture = super().context_of(words, encoder_out), of_decoder(encoder_out)
        if mixture is None:
            return context
        padding_mask = None
        if mixture.wants_similarities:
            # Beside a longer text's words a shorter one's end is read, too, after which nothing is written
            padding_mask = words.eq(self.config.pad_token_id) | words.eq(self.config.eos_token_id)
            padding_mask[:, 0] = False  # the first word is T5's padding
        return BatchContext(context.task_ids, padding_mask, mixture=mixture)

    def extra(self, context: BatchContext, encoder_out: dict[str, Any]) -> dict[str, Any]:
        """See `T5Decoder`; in training with the task sparsity loss of all layers."""
        return with_sparsity(super().extra(context, encoder_out), context, encoder_out)


@register_model("pemt_t5", dataclass=PemtT5Config)
class PemtT5Model(PemtModel, T5Model):
    """A T5 that learns a source task, or borrows from some."""

    encoder_class = PemtT5Encoder
    decoder_class = PemtT5Decoder

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options of the model's own dataclass; defaults are left to the architecture."""
        BaseFairseqModel.add_args.__func__(cls, parser)

    @classmethod
    def build_model(cls, cfg: PemtT5Config, task: Any) -> PemtT5Model:
        """Called by fairseq.

        Raises:
            UserError: an option is wrong, or a source's file is not what it must be.
        """
        begun = load_sources(cfg, task)
        config = t5_config(cfg)
        plan = adapter_plan(cfg, begun.about, config.d_model)
        blocks = range(max(config.num_layers, config.num_decoder_layers))
        model = cls(config, task.target_dictionary, dict.fromkeys(blocks, plan))
        model.begin(cfg, begun)
        begin(model, task)
        return model


class PemtBertEncoder(Prompted, BertEncoder):
    """BERT's or RoBERTa's encoder, whose blocks may have adapters."""

    def enter(
        self, tokens: LongTensor, token_type_ids: LongTensor | None, padding_mask: Tensor, task_ids: LongTensor | None
    ) -> tuple[Tensor, BatchContext, UnpaddedBatch]:
        """See `BertEncoder`; after each sentence the stream has the prompt."""
        x, context, batch = super().enter(tokens, token_type_ids, padding_mask, task_ids)
        prompt_PH = self.prompt_of_pass()
        if prompt_PH is not None:
            embedded_BLH, prompts_BPH = batch.pad(x), self._embedded(prompt_PH, len(tokens))
            padding_mask = F.pad(padding_mask, (0, len(prompt_PH)))
            batch = unpadded(padding_mask, task_ids)
            x, context = batch.unpad(torch.cat([embedded_BLH, prompts_BPH], 1)), batch.context()
        mixture = self.mixture_of(prompt_PH, padding_mask, first=tokens.shape[1])
        return x, replace(context, mixture=None if mixture is None else _of_stream(mixture, batch)), batch

    def _embedded(self, prompt_PH: Tensor, num_sentences: int) -> Tensor:
        """The prompt of each sentence, (B, P, H), embedded as words of the first type are, but for places."""
        x_PH = self.layernorm_embedding(prompt_PH.to(self.embed_segments.weight) + self.embed_segments.weight[0])
        embedded: Tensor = self.dropout_module(x_PH.expand(num_sentences, -1, -1))
        return embedded


def _of_stream(mixture: MixturePass, batch: UnpaddedBatch) -> MixturePass:
    """What gates read of a stream that has only the tokens which are no padding, or all."""
    if not batch.packed:
        return mixture
    summary, sentences = mixture.summary, batch.sentences()
    if callable(summary):
        return replace(mixture, sentences=sentences, summary=lambda x: summary(batch.pad(x).transpose(0, 1)))
    return replace(mixture, sentences=sentences)


@register_model("pemt_bert", dataclass=PemtBertConfig)
class PemtBertModel(PemtModel, EncoderModel):
    """An encoder that learns a source task, or borrows from some; the task's head trains in both stages."""

    @classmethod
    def build_model(cls, cfg: PemtBertConfig, task: Any) -> PemtBertModel:
        """Called by fairseq.

        Raises:
            UserError: an option is wrong, a source's file is not what it must be, or the run is of several tasks.
        """
        config = encoder_config(cfg)
        begun = load_sources(cfg, task)
        if frozen_blocks(cfg, config.num_hidden_layers):
            raise_invalid("--freeze-layers", "left out in a model of PEMT, which freezes all blocks", cfg.freeze_layers)
        plan = adapter_plan(cfg, begun.about, config.hidden_size)
        plans = dict.fromkeys(range(config.num_hidden_layers), plan)
        model = cls(PemtBertEncoder(config, plans, cfg.checkpoint_activations), heads_from_text(cfg.heads))
        model.begin(cfg, begun)
        pretrained = pretrained_state(task)
        if pretrained:
            heads = {name: value for name, value in model.state_dict().items() if name.startswith(HEADS)}
            model.load_state_dict({**heads, **{f"encoder.{name}": value for name, value in pretrained.items()}})
        return model

    def extra(self, encoded: Encoded) -> dict[str, Tensor]:
        """See `EncoderModel`: in training the task sparsity loss, where it is wanted."""
        if encoded.mixture is None or not encoded.mixture.wants_similarities:
            return {}
        return {SPARSITY: task_sparsity_loss([encoded.mixture])}


class PromptedEncoder(Prompted, Encoder):
    """Mixed into an encoder, whose blocks may have adapters."""

    layernorm_embedding: Any

    def embed(
        self, src_tokens: Tensor, task_ids: LongTensor | None, token_embeddings: Tensor | None = None
    ) -> tuple[Tensor, BatchContext, Tensor]:
        """See `Encoder`; the prompt's vectors are embedded as words are, but for their places."""
        x, context, embedded = super().embed(src_tokens, task_ids, token_embeddings)
        prompt_PH = self.prompt_of_pass()
        padding_mask = src_tokens.eq(self.padding_idx)
        if prompt_PH is not None:
            x = torch.cat([self._embedded_prompt(prompt_PH, x), x])
            padding_mask = F.pad(padding_mask, (len(prompt_PH), 0))
        has_padding = context.padding_mask is not None
        context = replace(
            context,
            padding_mask=padding_mask if has_padding else None,
            prompt_length=len(x) - src_tokens.shape[1],
            mixture=self.mixture_of(prompt_PH, padding_mask),
        )
        return x, context, embedded

    def _embedded_prompt(self, prompt_PH: Tensor, x_LBH: Tensor) -> Tensor:
        """(P, B, H)."""
        vectors = prompt_PH.to(x_LBH.dtype).unsqueeze(1).expand(-1, x_LBH.shape[1], -1)
        vectors = vectors if self.layernorm_embedding is None else self.layernorm_embedding(vectors)
        embedded: Tensor = self.dropout_module(vectors)
        return embedded

    def encoded(self, states: Tensor, context: BatchContext) -> dict[str, list[Any]]:
        """See `Encoder`; with the pass that was, and the decoder's."""
        return with_passes(super().encoded(states, context), states, context)

    def select(self, encoder_out: dict[str, Any], sentences: Tensor) -> dict[str, Any]:
        """See `Encoder`."""
        return with_selected(super().select(encoder_out, sentences), encoder_out, sentences)


class GuidedDecoder(Decoder):
    """Mixed into a decoder, whose gates read what the encoder says."""

    def context_of(self, words: Tensor, encoder_out: dict[str, Any]) -> BatchContext:
        """See `Decoder`."""
        context = super().context_of(words, encoder_out)
        return replace(context, mixture=of_decoder(encoder_out))

    def extra(self, context: BatchContext, encoder_out: dict[str, Any]) -> dict[str, Any]:
        """See `Decoder`; in training with the task sparsity loss of all layers."""
        return with_sparsity(super().extra(context, encoder_out), context, encoder_out)


class ConditionalPromptedEncoder(PromptedEncoder, ConditionalEncoder):
    """The same of a translator that adapts to tasks."""


class ConditionalGuidedDecoder(GuidedDecoder, ConditionalDecoder):
    """The same of a translator that adapts to tasks."""


@register_model("pemt_translation", dataclass=PemtTranslationConfig)
class PemtTranslationModel(PemtModel, Transformer):
    """A dense translator that borrows from language pairs; `--finetune-from-model` gives it the translator's weights.

    Attributes:
        task_names: the names behind the task ids that it tells apart; none where it does not.
    """

    encoder_class, decoder_class = PromptedEncoder, GuidedDecoder
    conditional_encoder_class, conditional_decoder_class = ConditionalPromptedEncoder, ConditionalGuidedDecoder
    task_names: list[str]

    @classmethod
    def build_model(cls, cfg: PemtTranslationConfig, task: Any) -> PemtTranslationModel:
        """Called by fairseq.

        Raises:
            UserError: an option is out of its range, a source's file is not what it must be, or the task trains several
                language pairs.
        """
        no_recomputing = ("checkpoint_activations", "offload_activations")
        for name in ("cross_self_attention", "quant_noise_pq", "base_layers", *no_recomputing):
            if getattr(cfg, name):
                raise_invalid(f"--{name.replace('_', '-')}", "off in a model that borrows", getattr(cfg, name))
        begun = load_sources(cfg, task)
        conditions = conditions_of(cfg)
        plan = adapter_plan(cfg, begun.about, cfg.encoder_embed_dim)
        plans = dict.fromkeys(range(max(cfg.encoder_layers, cfg.decoder_layers)), plan)
        model = cls.build_with_slots(nested_options(cfg), task, plans, conditions)
        model.task_names = names_of_tasks(cfg) if conditions is not None else []
        model.begin(cfg, begun)
        return model

    def prompt_embeddings(self) -> Tensor:
        """See `PemtModel`."""
        encoder: Any = self.encoder
        scaled: Tensor = encoder.embed_scale * encoder.embed_tokens.weight
        return scaled
