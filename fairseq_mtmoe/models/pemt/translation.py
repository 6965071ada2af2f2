"""PEMT for languages: a translator with a prompt before each sentence, which borrows adapters of language pairs.

A source task is a language pair that the translator was trained on, or not; the target is another. The prompt begins
as the embeddings of what the pair's languages are, and has no places: words keep theirs.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models import register_model
from torch import LongTensor, Tensor
from torch.nn import functional as F

from fairseq_mtmoe.backbones.translation.conditional import ConditionalDecoder, ConditionalEncoder, Conditions
from fairseq_mtmoe.backbones.translation.model import Transformer, register_sizes
from fairseq_mtmoe.backbones.translation.stacks import Decoder, Encoder
from fairseq_mtmoe.errors import must_be
from fairseq_mtmoe.models.pemt import passes
from fairseq_mtmoe.models.pemt.borrowing import PemtModel, adapter_plan, beginnings
from fairseq_mtmoe.models.pemt.config import PemtOptions
from fairseq_mtmoe.models.pemt.prompted import Prompted
from fairseq_mtmoe.options.conditional import ConditionalOptions
from fairseq_mtmoe.options.run import RunOptions
from fairseq_mtmoe.options.tasks import names_of_tasks
from fairseq_mtmoe.options.transformer import FlatTransformerConfig, nested_options
from fairseq_mtmoe.slots import BatchContext


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
        context = dataclasses.replace(
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
        return passes.with_passes(super().encoded(states, context), states, context)

    def select(self, encoder_out: dict[str, Any], sentences: Tensor) -> dict[str, Any]:
        """See `Encoder`."""
        return passes.with_selected(super().select(encoder_out, sentences), encoder_out, sentences)


class GuidedDecoder(Decoder):
    """Mixed into a decoder, whose gates read what the encoder says."""

    def context_of(self, words: Tensor, encoder_out: dict[str, Any]) -> BatchContext:
        """See `Decoder`."""
        context = super().context_of(words, encoder_out)
        return dataclasses.replace(context, mixture=passes.of_decoder(encoder_out))

    def extra(self, context: BatchContext, encoder_out: dict[str, Any]) -> dict[str, Any]:
        """See `Decoder`; in training with the task sparsity loss of all layers."""
        return passes.with_sparsity(super().extra(context, encoder_out), context, encoder_out)


class ConditionalPromptedEncoder(PromptedEncoder, ConditionalEncoder):
    """The same of a translator that adapts to tasks."""


class ConditionalGuidedDecoder(GuidedDecoder, ConditionalDecoder):
    """The same of a translator that adapts to tasks."""


@dataclass
class PemtTranslationConfig(PemtOptions, ConditionalOptions, RunOptions, FlatTransformerConfig):
    """What `--arch pemt_translation…` adds to fairseq's transformer options."""


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
                must_be(f"--{name.replace('_', '-')}", "off in a model that borrows", getattr(cfg, name))
        begun = beginnings(cfg, task)
        conditions = Conditions.of(cfg)
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


register_sizes("pemt_translation")
