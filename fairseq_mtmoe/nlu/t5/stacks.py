"""T5's encoder and decoder with the interfaces of fairseq's searches."""

from typing import Any, ClassVar

import torch
from fairseq.models import FairseqEncoder, FairseqIncrementalDecoder
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.nlu.t5.blocks import (
    DecoderBlock,
    EncoderBlock,
    RelativePositions,
    RMSNorm,
    T5Block,
    hidden_at,
)
from fairseq_mtmoe.nlu.t5.config import T5Config
from fairseq_mtmoe.slots import BatchContext
from fairseq_mtmoe.slots.blocks import SlotPlans, Stack
from fairseq_mtmoe.translation.model.beam_attention import STATE, BeamState, SearchedEncoder


class T5Stack(Stack):
    """Common part of both stacks, a mixin for fairseq's encoder or decoder.

    Both share `embed_tokens`.
    """

    block: ClassVar[type[T5Block]]

    def __init__(
        self, config: T5Config, dictionary: Any, embed_tokens: nn.Embedding, slot_plans: SlotPlans
    ) -> None:
        super().__init__(dictionary)
        is_encoder = self.block is EncoderBlock
        self.config = config
        self.embed_tokens = embed_tokens
        self.slot_plans = slot_plans
        self.relative_positions = RelativePositions(config, looks_ahead=is_encoder)
        self.layers = nn.ModuleList()
        for _ in range(config.num_layers if is_encoder else config.num_decoder_layers):
            self.layers.append(self.fill_slot(self.block(config)))
        self.layer_norm = RMSNorm(config.d_model, config.layer_norm_epsilon)
        self.dropout_module = nn.Dropout(config.dropout_rate)

    def max_positions(self) -> int:
        """Return the maximum length, which is large because positions are relative."""
        return 1 << 20


class T5Encoder(SearchedEncoder, T5Stack, FairseqEncoder):
    """T5's encoder."""

    block = EncoderBlock

    def forward(
        self,
        src_tokens: LongTensor,
        src_lengths: Tensor | None = None,
        task_ids: LongTensor | None = None,
    ) -> dict[str, list[Any]]:
        """Encode padded texts (B, L).

        Return the output in the form that fairseq's searches expect.
        """
        x, context = self.embed(src_tokens, task_ids)
        assert context.padding_mask is not None
        positions = torch.arange(len(x), device=x.device)
        bias = (
            self.relative_positions(positions, len(x))
            + hidden_at(context.padding_mask, x)[:, None, None]
        )
        for block in self.layers:
            x = block(x, context, bias)
        return self.encoded(self.dropout_module(self.layer_norm(x)), context)

    def embed(
        self, src_tokens: LongTensor, task_ids: LongTensor | None
    ) -> tuple[Tensor, BatchContext]:
        """Return the stream before the first block, (L, B, H), and its context.

        A subclass may add to the stream.
        """
        x = self.dropout_module(self.embed_tokens(src_tokens.t()))
        return x, BatchContext(task_ids, src_tokens.eq(self.config.pad_token_id))

    def encoded(self, states: Tensor, context: BatchContext) -> dict[str, list[Any]]:
        """Return the encoder's output: states (L, B, H), padding and task ids."""
        return {
            "encoder_out": [states],  # (L, B, H)
            "encoder_padding_mask": [context.padding_mask],  # (B, L)
            "task_ids": [] if context.task_ids is None else [context.task_ids],
        }

    def select(self, encoder_out: dict[str, Any], sentences: Tensor) -> dict[str, Any]:
        """Return the output of these texts, in this order."""
        dims = {"encoder_out": 1, "encoder_padding_mask": 0, "task_ids": 0}  # of the texts
        selected = {}
        for name, dim in dims.items():
            selected[name] = [x.index_select(dim, sentences) for x in encoder_out[name]]
        return selected


class T5Decoder(T5Stack, FairseqIncrementalDecoder):
    """T5's decoder."""

    block = DecoderBlock

    def __init__(self, config: T5Config, *args: Any) -> None:
        super().__init__(config, *args)
        self.output_projection = nn.Linear(config.d_model, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.output_projection.weight = self.embed_tokens.weight
        else:
            nn.init.normal_(self.output_projection.weight, std=config.initializer_factor)

    def forward(
        self,
        prev_output_tokens: LongTensor,
        encoder_out: dict[str, Any],
        incremental_state: dict[str, Any] | None = None,
        **unused: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Return logits (B, L, V), in a search only the last word's, and extra output."""
        (beam,) = encoder_out.get("beam", [1])
        (source,) = encoder_out["encoder_out"]
        (source_padding,) = encoder_out["encoder_padding_mask"]
        words: Tensor = prev_output_tokens
        length = words.shape[1]
        positions = torch.arange(length, device=words.device)
        if incremental_state is not None:
            words = words[:, -1:]
            positions = positions[-1:]
            # T5's first word is padding, which it reads like any other word
            BeamState.of(incremental_state, len(words), beam).read_word(
                torch.ones_like(words[:, 0], dtype=torch.bool)
            )
        elif beam > 1:  # in an ensemble with a model that keeps no state
            source = source.repeat_interleave(beam, 1)
            source_padding = source_padding.repeat_interleave(beam, 0)
        context = self.context_of(words, encoder_out)
        x = self.dropout_module(self.embed_tokens(words.t()))
        bias = self.relative_positions(positions, length).to(x.dtype)
        if incremental_state is None:
            ahead = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            bias = bias + hidden_at(ahead, x)
        for block in self.layers:
            x = block(x, context, bias, source, source_padding, incremental_state)
        states = self.dropout_module(self.layer_norm(x)).transpose(0, 1).contiguous()
        logits: Tensor = self.output_projection(states * self.config.output_scale)
        return logits, self.extra(context, encoder_out)

    def context_of(self, words: Tensor, encoder_out: dict[str, Any]) -> BatchContext:
        """Return the blocks' context of a batch with `beam` rows per text."""
        (beam,) = encoder_out.get("beam", [1])
        (task_ids,) = encoder_out["task_ids"] or [None]
        return BatchContext(None if task_ids is None else task_ids.repeat_interleave(beam), None)

    def extra(self, context: BatchContext, encoder_out: dict[str, Any]) -> dict[str, Any]:
        """Return extra output after a pass with this context."""
        return {"attn": [None]}

    def reorder_incremental_state_scripting(
        self, incremental_state: dict[str, Any], new_order: Tensor
    ) -> None:
        """Reorder as fairseq does: each row continues the row that `new_order` names."""
        incremental_state[STATE].reorder(new_order)
