"""T5's encoder and decoder as fairseq's, so that its search writes with them."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.models import FairseqEncoder, FairseqIncrementalDecoder
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.backbones.blocks import SlotPlans, Stack
from fairseq_mtmoe.backbones.t5.attention import RelativePositions
from fairseq_mtmoe.backbones.t5.blocks import DecoderBlock, EncoderBlock, RMSNorm, hidden_at
from fairseq_mtmoe.backbones.t5.config import T5Config
from fairseq_mtmoe.backbones.translation.decoding import STATE, BeamState, reordered_sentences
from fairseq_mtmoe.slots import BatchContext


class T5Encoder(Stack, FairseqEncoder):
    """The encoder.

    Args:
        config: its sizes.
        dictionary: fairseq's, of the tokens.
        embed_tokens: shared with the decoder.
        slot_plans: what stands in the slot of which block.
    """

    def __init__(self, config: T5Config, dictionary: Any, embed_tokens: nn.Embedding, slot_plans: SlotPlans) -> None:
        super().__init__(dictionary)
        self.config = config
        self.embed_tokens = embed_tokens
        self.relative_positions = RelativePositions(config, looks_ahead=True)
        self.start_stack(slot_plans)
        self.layers = nn.ModuleList()
        for _ in range(config.num_layers):
            block = EncoderBlock(config)
            self.fill_slot(block)
            self.layers.append(block)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout_module = nn.Dropout(config.dropout_rate)

    def forward(
        self, src_tokens: LongTensor, src_lengths: Tensor | None = None, task_ids: LongTensor | None = None
    ) -> dict[str, list[Any]]:
        """Encode texts (B, L), padded; the output is of the form that fairseq's searches know."""
        padding_mask = src_tokens.eq(self.config.pad_token_id)
        context = BatchContext(task_ids, padding_mask)
        x = self.dropout_module(self.embed_tokens(src_tokens)).transpose(0, 1)
        places = torch.arange(len(x), device=x.device)
        bias = self.relative_positions(places, len(x)) + hidden_at(padding_mask, x)[:, None, None]
        for block in self.layers:
            x = block(x, context, bias)
        return {
            "encoder_out": [self.dropout_module(self.layer_norm(x))],  # (L, B, H)
            "encoder_padding_mask": [padding_mask],  # (B, L)
            "task_ids": [] if task_ids is None else [task_ids],
        }

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: LongTensor) -> dict[str, Any]:
        """As fairseq's; hypotheses of one sentence share its row as long as they stay together."""
        sentences, beam = reordered_sentences(encoder_out, new_order)
        if sentences is None:
            return {**encoder_out, "beam": [beam]}
        return {
            "encoder_out": [x.index_select(1, sentences) for x in encoder_out["encoder_out"]],
            "encoder_padding_mask": [mask.index_select(0, sentences) for mask in encoder_out["encoder_padding_mask"]],
            "task_ids": [ids.index_select(0, sentences) for ids in encoder_out["task_ids"]],
            "beam": [beam],
        }

    def max_positions(self) -> int:
        """Any length: positions are relative."""
        return 1 << 20


class T5Decoder(Stack, FairseqIncrementalDecoder):
    """The decoder; arguments as the encoder's."""

    def __init__(self, config: T5Config, dictionary: Any, embed_tokens: nn.Embedding, slot_plans: SlotPlans) -> None:
        super().__init__(dictionary)
        self.config = config
        self.embed_tokens = embed_tokens
        self.relative_positions = RelativePositions(config, looks_ahead=False)
        self.start_stack(slot_plans)
        self.layers = nn.ModuleList()
        for _ in range(config.num_decoder_layers):
            block = DecoderBlock(config)
            self.fill_slot(block)
            self.layers.append(block)
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout_module = nn.Dropout(config.dropout_rate)
        self.output_projection = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.output_projection.weight = embed_tokens.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=config.initializer_factor)

    def forward(
        self,
        prev_output_tokens: LongTensor,
        encoder_out: dict[str, Any],
        incremental_state: dict[str, Any] | None = None,
        features_only: bool = False,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Scores of the next words, (B, L, V), or states (B, L, H); while a text grows, those of the last word."""
        x = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return (x if features_only else self.output_layer(x)), {"attn": [None]}

    def extract_features(
        self,
        prev_output_tokens: LongTensor,
        encoder_out: dict[str, Any],
        incremental_state: dict[str, Any] | None = None,
    ) -> Tensor:
        """The states from which words are predicted, (B, L, H)."""
        (beam,) = encoder_out.get("beam", [1])
        words: Tensor = prev_output_tokens
        (source,), (source_padding,) = encoder_out["encoder_out"], encoder_out["encoder_padding_mask"]
        (task_ids,) = encoder_out["task_ids"] or [None]
        length = prev_output_tokens.shape[1]
        places = torch.arange(length, device=prev_output_tokens.device)
        if incremental_state is not None:
            if STATE not in incremental_state:
                incremental_state[STATE] = BeamState(len(prev_output_tokens) // beam, beam)
            # The first word is T5's padding, and is read like any other.
            incremental_state[STATE].read_word(torch.ones_like(prev_output_tokens[:, -1], dtype=torch.bool))
            words, places = words[:, -1:], places[-1:]
        elif beam > 1:  # in an ensemble with a model that keeps no state
            source, source_padding = source.repeat_interleave(beam, 1), source_padding.repeat_interleave(beam, 0)
        task_ids = None if task_ids is None else task_ids.repeat_interleave(beam)
        context = BatchContext(task_ids, None)
        x = self.dropout_module(self.embed_tokens(words)).transpose(0, 1)
        bias = self.relative_positions(places, length).to(x.dtype)
        if incremental_state is None:
            ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            bias = bias + hidden_at(ahead, x)
        for block in self.layers:
            x = block(x, context, bias, source, source_padding, incremental_state)
        features: Tensor = self.dropout_module(self.layer_norm(x)).transpose(0, 1) * self.config.output_scale
        return features

    def output_layer(self, features: Tensor) -> Tensor:
        """Scores of words, (…, V)."""
        scores: Tensor = self.output_projection(features)
        return scores

    def reorder_incremental_state_scripting(self, incremental_state: dict[str, Any], new_order: Tensor) -> None:
        """As fairseq's: between two words, each row goes on from the row that `new_order` names."""
        incremental_state[STATE].reorder(new_order)

    def max_positions(self) -> int:
        """Any length: positions are relative."""
        return 1 << 20
