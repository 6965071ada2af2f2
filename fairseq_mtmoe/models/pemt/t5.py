"""T5's stacks with a prompt before each text, and gates that are told what they read."""

from __future__ import annotations

from typing import Any

from torch import LongTensor, Tensor

from fairseq_mtmoe.backbones.t5.stacks import T5Decoder, T5Encoder
from fairseq_mtmoe.models.pemt import passes
from fairseq_mtmoe.models.pemt.prompted import Prompted
from fairseq_mtmoe.models.pemt.prompts import prepended
from fairseq_mtmoe.slots import BatchContext


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
        return passes.with_passes(super().encoded(states, context), states, context)

    def select(self, encoder_out: dict[str, Any], sentences: Tensor) -> dict[str, Any]:
        """See `T5Encoder`."""
        return passes.with_selected(super().select(encoder_out, sentences), encoder_out, sentences)


class PemtT5Decoder(T5Decoder):
    """T5's decoder, whose gates read what the encoder says."""

    def context_of(self, words: Tensor, encoder_out: dict[str, Any]) -> BatchContext:
        """See `T5Decoder`; where the task sparsity loss is wanted it tells padding, too."""
        context, mixture = super().context_of(words, encoder_out), passes.of_decoder(encoder_out)
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
        return passes.with_sparsity(super().extra(context, encoder_out), context, encoder_out)
