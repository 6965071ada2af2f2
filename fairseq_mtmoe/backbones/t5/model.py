"""T5 as a fairseq model of encoder and decoder."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from fairseq.data import Dictionary
from fairseq.models import FairseqEncoderDecoderModel
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.backbones.blocks import SlotPlans
from fairseq_mtmoe.backbones.t5.config import T5Config
from fairseq_mtmoe.backbones.t5.stacks import T5Decoder, T5Encoder


class T5Model(FairseqEncoderDecoderModel):
    """A T5; without what stands in its slots it computes what Hugging Face's `T5ForConditionalGeneration` does.

    Args:
        config: its sizes.
        dictionary: fairseq's, in which the tokens have their numbers.
        slot_plans: what stands in the slot of which block, the same in both stacks; none: a dense model.
    """

    encoder_class: ClassVar[type[T5Encoder]] = T5Encoder
    decoder_class: ClassVar[type[T5Decoder]] = T5Decoder

    def __init__(self, config: T5Config, dictionary: Dictionary, slot_plans: SlotPlans | None = None) -> None:
        embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        nn.init.normal_(embed_tokens.weight, std=config.initializer_factor)
        super().__init__(
            self.encoder_class(config, dictionary, embed_tokens, slot_plans or {}),
            self.decoder_class(config, dictionary, embed_tokens, slot_plans or {}),
        )
        self.config = config

    def forward(
        self,
        src_tokens: LongTensor,
        src_lengths: Tensor | None = None,
        prev_output_tokens: LongTensor | None = None,
        task_ids: LongTensor | None = None,
        features_only: bool = False,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Scores of the next words, (B, L, V), or states (B, L, H).

        Args:
            src_tokens: texts, (B, J), padded.
            src_lengths: fairseq's; not needed.
            prev_output_tokens: what the decoder reads, (B, L): `shifted` answers.
            task_ids: each text's task, (B,), for slots that tell tasks apart.
            features_only: give states.
        """
        encoder_out = self.encoder(src_tokens, src_lengths, task_ids=task_ids)
        output: tuple[Tensor, dict[str, Any]] = self.decoder(
            prev_output_tokens, encoder_out, features_only=features_only
        )
        return output

    def max_positions(self) -> tuple[int, int]:
        """Of texts and answers."""
        return self.encoder.max_positions(), self.decoder.max_positions()


def shifted(answers: LongTensor, config: T5Config) -> Tensor:
    """What the decoder reads when it is to write `answers` (B, L): they begin with T5's first token."""
    first = torch.full_like(answers[:, :1], config.decoder_start_token_id)
    return torch.cat([first, answers[:, :-1]], dim=1)
