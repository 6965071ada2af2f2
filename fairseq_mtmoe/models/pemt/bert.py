"""PEMT on BERT and RoBERTa: an encoder with a head for its one task, which learns a source task or borrows from some.

The paper has a prompt before the tokens of T5, whose positions are relative. Here it stands beside the tokens: its
vectors have no places, and attention reads all in any order. So tokens keep the places that they were pretrained with,
[CLS] is the first of them, and heads find words and passages where they are without a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model
from torch import LongTensor, Tensor
from torch.nn import functional as F

from fairseq_mtmoe.backbones.bert.encoder import BertEncoder, Encoded
from fairseq_mtmoe.backbones.bert.heads import heads_from_text
from fairseq_mtmoe.backbones.bert.model import (
    EncoderModel,
    base,
    encoder_config,
    frozen_blocks,
    large,
    minilm,
    pretrained_state,
    register_sizes,
)
from fairseq_mtmoe.backbones.bert.rows import Rows, rows_of
from fairseq_mtmoe.backbones.bert.transfer import HEADS
from fairseq_mtmoe.errors import must_be
from fairseq_mtmoe.models.pemt.borrowing import PemtModel, adapter_plan, beginnings
from fairseq_mtmoe.models.pemt.config import PemtOptions
from fairseq_mtmoe.models.pemt.prompted import Prompted
from fairseq_mtmoe.options.encoder import EncoderOptions
from fairseq_mtmoe.options.run import RunOptions
from fairseq_mtmoe.slots import SPARSITY, BatchContext, MixturePass, task_sparsity_loss


class PemtBertEncoder(Prompted, BertEncoder):
    """BERT's or RoBERTa's encoder, whose blocks may have adapters."""

    def enter(
        self, tokens: LongTensor, token_type_ids: LongTensor | None, padding_mask: Tensor, task_ids: LongTensor | None
    ) -> tuple[Tensor, BatchContext, Rows]:
        """See `BertEncoder`; after each sentence the stream has the prompt."""
        x, context, rows = super().enter(tokens, token_type_ids, padding_mask, task_ids)
        prompt_PH = self.prompt_of_pass()
        if prompt_PH is not None:
            embedded_BLH, prompts_BPH = rows.spread(x), self._embedded(prompt_PH, len(tokens))
            padding_mask = F.pad(padding_mask, (0, len(prompt_PH)))
            rows = rows_of(padding_mask)
            x, context = rows.take(torch.cat([embedded_BLH, prompts_BPH], 1)), rows.context(task_ids)
        mixture = self.mixture_of(prompt_PH, padding_mask, first=tokens.shape[1])
        return x, replace(context, mixture=None if mixture is None else _of_rows(mixture, rows)), rows

    def _embedded(self, prompt_PH: Tensor, num_sentences: int) -> Tensor:
        """The prompt of each sentence, (B, P, H), embedded as words of the first type are, but for places."""
        x_PH = self.layernorm_embedding(prompt_PH.to(self.embed_segments.weight) + self.embed_segments.weight[0])
        embedded: Tensor = self.dropout_module(x_PH.expand(num_sentences, -1, -1))
        return embedded


def _of_rows(mixture: MixturePass, rows: Rows) -> MixturePass:
    """What gates read of a stream that has only the tokens which are no padding, or all."""
    if not rows.packed:
        return mixture
    summary = mixture.summary
    if not callable(summary):
        return replace(mixture, sentences=rows.sentences())
    return replace(mixture, sentences=rows.sentences(), summary=lambda x: summary(rows.spread(x).transpose(0, 1)))


@dataclass
class PemtBertConfig(PemtOptions, RunOptions, EncoderOptions, FairseqDataclass):
    """PEMT on a pretrained encoder."""


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
        begun = beginnings(cfg, task)
        if frozen_blocks(cfg, config.num_hidden_layers):
            must_be("--freeze-layers", "left out in a model of PEMT, which freezes all blocks", cfg.freeze_layers)
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


register_sizes("pemt_bert", {"minilm": minilm, "base": base, "large": large})
