"""fairseq's encoder and decoder with slots in their blocks.

The loops over blocks are rewritten here, so that blocks get the batch's context as an argument.
Stacks with `Conditions` adapt to each sentence's task, with an alignment before the first block.
The encoder holds the tasks' embeddings, and passes them to the decoder with its output.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
)
from fairseq.modules import SinusoidalPositionalEmbedding
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import LongTensor, Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.transformer_options import MARIAN
from fairseq_mtmoe.moe.parallel.token_shuffle import TokenCounts
from fairseq_mtmoe.slots import BatchContext
from fairseq_mtmoe.slots.blocks import Conditions, SlotPlans, Stack
from fairseq_mtmoe.translation.model.beam_attention import STATE, TASKS, BeamState, SearchedEncoder
from fairseq_mtmoe.translation.model.blocks import DecoderBlock, EncoderBlock, FairseqBlock


class FairseqStack(Stack):
    """Mixin for fairseq's encoder or decoder; with `conditions` it adapts to tasks."""

    side: ClassVar[str]  # the stack's name in fairseq's options
    embed_positions: Any
    shares_beams: bool  # whether a sentence's hypotheses share keys and values

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return an attribute of fairseq's stacks, which are not typed."""

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Any,
        embed_tokens: nn.Module,
        slot_plans: SlotPlans,
        conditions: Conditions | None = None,
        **options: Any,
    ) -> None:
        self.slot_plans = slot_plans
        self.conditions = conditions
        sizes = getattr(cfg, self.side)
        super().__init__(cfg, dictionary, embed_tokens, **options)
        is_sinusoidal = isinstance(self.embed_positions, SinusoidalPositionalEmbedding)
        if cfg.form.sinusoids == MARIAN and is_sinusoidal:
            self.embed_positions = MarianPositions(sizes.embed_dim, self.padding_idx)
        self.shares_beams = not cfg.cross_self_attention
        assert self.filled_slots == sizes.layers, (
            f"`build_{self.side}_layer` returns the result of `fill_next`"
        )
        # Its name in `--retain-dropout-modules`
        self.dropout_module.module_name = f"Transformer{self.side.title()}"
        self.task_embeddings = self.alignment = None
        if conditions is not None:
            if self.side == "encoder":
                self.task_embeddings = conditions.embeddings()
            self.alignment = conditions.alignment(sizes.embed_dim)

    def fill_next(self, block: FairseqBlock, cfg: TransformerConfig) -> Any:
        """Fill the next block's slot, add conditional parts, and wrap it as fairseq does.

        Conditional blocks use torch's activation checkpointing, because fairseq's loses gradients
        of task embeddings.
        """
        if self.conditions is not None:
            count = getattr(cfg, self.side).layers
            block.become_conditional(self.conditions, self.filled_slots, count)
        wrapped: Any = self.fill_slot(block)
        if cfg.checkpoint_activations and self.conditions is not None:
            wrapped.forward = partial(checkpoint, wrapped.forward, use_reentrant=False)
        elif cfg.checkpoint_activations:
            wrapped = checkpoint_wrapper(wrapped, offload_to_cpu=cfg.offload_activations)
        min_params = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
        return fsdp_wrap(wrapped, min_num_params=min_params)

    def upgrade_state_dict_named(
        self, state_dict: dict[str, Tensor], name: str
    ) -> dict[str, Tensor]:
        """Upgrade as fairseq does, but keep the last norm if the version is missing.

        It is missing in averages of `--store-ema`.
        """
        state_dict.setdefault(f"{name}.version", self.version)
        upgraded: dict[str, Tensor]
        upgraded = super().upgrade_state_dict_named(state_dict, name)  # type: ignore[misc]
        return upgraded


class MarianPositions(SinusoidalPositionalEmbedding):
    """Marian's sinusoidal positions, with frequencies 10000^(-2k/H), from 0."""

    weights: Tensor

    def __init__(self, width: int, padding_idx: int, longest: int = 1024) -> None:
        super().__init__(width, padding_idx, padding_idx + 1)
        self.register_buffer("weights", self._table(longest), persistent=False)

    def _table(self, longest: int) -> Tensor:
        """Return the vectors (N, H) by fairseq's position, which starts after padding."""
        first = self.padding_idx + 1
        even = torch.arange(0, self.embedding_dim, 2, dtype=torch.double)
        frequencies = 10000.0 ** -(even / self.embedding_dim)
        angles = torch.arange(-first, longest, dtype=torch.double).unsqueeze(1) * frequencies
        table = torch.cat([angles.sin(), angles.cos()], 1)[:, : self.embedding_dim]
        table[:first] = 0
        return table.float()

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Embed as fairseq does, with a larger table if needed."""
        if input.shape[1] + self.padding_idx + 1 > len(self.weights):
            self.weights = self._table(input.shape[1]).to(self.weights)
        positions: Tensor = super().forward(input, *args, **kwargs)
        return positions


class Encoder(SearchedEncoder, FairseqStack, TransformerEncoderBase):
    """fairseq's encoder with slots.

    A system with its own blocks overrides `build_encoder_layer`.
    """

    side = "encoder"

    def build_encoder_layer(self, cfg: TransformerConfig) -> Any:
        """Return `fill_next` of a new `EncoderBlock` or a subclass.

        Fairseq calls it once per block, in order.
        """
        return self.fill_next(EncoderBlock(cfg), cfg)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        task_ids: LongTensor | None = None,
        token_counts: TokenCounts | None = None,
    ) -> dict[str, list[Any]]:
        """Compute as fairseq does.

        The output also has `task_ids` (B,) and the tasks' embeddings.
        """
        x, context, embedded = self.embed(src_tokens, task_ids)
        if token_counts is not None:
            context = replace(context, token_counts=token_counts)
        x = self.aligned(x, context)
        states = [x]
        for block in self.layers:
            x = block(x, context)
            if return_all_hiddens:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            **self.encoded(x, context),
            "encoder_embedding": [embedded],  # (B, S, H)
            "encoder_states": states if return_all_hiddens else [],  # (L, B, H) each
        }

    def embed(
        self, src_tokens: Tensor, task_ids: LongTensor | None
    ) -> tuple[Tensor, BatchContext, Tensor]:
        """Return the stream before the first block (L, B, H), context, and embeddings.

        A subclass may add vectors before the words; `prompt_length` in the context is their number.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        has_padding = padding_mask.any()
        x, embedded = self.forward_embedding(src_tokens)
        x = x * (1 - padding_mask.unsqueeze(-1).type_as(x) * has_padding.type_as(x))
        context = BatchContext(
            task_ids, padding_mask if has_padding else None, tasks=self.tasks_of(task_ids)
        )
        return x.transpose(0, 1), context, embedded

    def encoded(self, states: Tensor, context: BatchContext) -> dict[str, list[Any]]:
        """Return the encoder's output: states (L, B, H), padding, lengths and tasks."""
        padding_mask = context.padding_mask
        if padding_mask is None:
            padding_mask = torch.zeros(states.shape[1::-1], dtype=torch.bool, device=states.device)
        lengths = (~padding_mask).sum(dim=1, dtype=torch.int32) - context.prompt_length
        encoded: dict[str, list[Any]] = {
            "encoder_out": [states],
            "encoder_padding_mask": [padding_mask],  # (B, L)
            "src_tokens": [],
            "src_lengths": [lengths.reshape(-1, 1)],
            "task_ids": [] if context.task_ids is None else [context.task_ids],
        }
        if context.tasks is not None:
            encoded["tasks"] = [context.tasks]
        if context.prompt_length:
            encoded["prompt_length"] = [context.prompt_length]
        return encoded

    def select(self, encoder_out: dict[str, Any], sentences: Tensor) -> dict[str, Any]:
        """Return the output of these sentences, in this order."""
        selected = TransformerEncoderBase.reorder_encoder_out(self, encoder_out, sentences)
        task_ids = [ids.index_select(0, sentences) for ids in encoder_out["task_ids"]]
        return {**encoder_out, **selected, "task_ids": task_ids}


class Decoder(FairseqStack, TransformerDecoderBase):
    """fairseq's decoder with slots.

    A system with its own blocks overrides `build_decoder_layer`.
    """

    side = "decoder"

    def __init__(self, cfg: TransformerConfig, *args: Any, **options: Any) -> None:
        super().__init__(cfg, *args, **options)
        self.begins_with_pad = cfg.form.decoder_begins_with_pad
        # A tied output layer would train the row of <pad>, which CTranslate2 expects to be 0
        if self.begins_with_pad:
            self.embed_tokens.weight.register_hook(self._without_padding)
        if cfg.form.output_bias:
            projection = self.output_projection
            if not isinstance(projection, nn.Linear):
                raise UserError(
                    "`--output-bias` cannot be combined with `--adaptive-softmax-cutoff`."
                )
            projection.bias = nn.Parameter(torch.zeros(len(projection.weight)))

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> Any:
        """Return `fill_next` of a new `DecoderBlock` or a subclass.

        Fairseq calls it once per block, in order.
        """
        return self.fill_next(DecoderBlock(cfg, no_encoder_attn), cfg)

    def extract_features_scriptable(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, Any] | None = None,
        incremental_state: dict[str, Any] | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """Compute as fairseq does, with the tasks in the encoder's output."""
        source = encoder_out or {}
        (beam,) = source.get("beam", [1])
        (encoded,) = source.get("encoder_out") or [None]
        (source_mask,) = source.get("encoder_padding_mask") or [None]
        if incremental_state is not None and self.shares_beams:
            state = BeamState.of(incremental_state, len(prev_output_tokens), beam)
            state.read_word(prev_output_tokens[:, -1].ne(self.padding_idx))
        elif beam > 1:  # in an ensemble with a model that keeps no state
            encoded = encoded.repeat_interleave(beam, 1)
            source_mask = source_mask.repeat_interleave(beam, 0)
        words = prev_output_tokens if incremental_state is None else prev_output_tokens[:, -1:]
        context = self.context_of(words, _of_search(source, incremental_state))
        x = self.aligned(self._embedded(prev_output_tokens, incremental_state), context)
        self_attn_mask = None
        if incremental_state is None and not full_context_alignment:
            self_attn_mask = self.buffered_future_mask(x)
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        attention = None
        states = [x]
        for index, block in enumerate(self.layers):
            is_chosen = index == alignment_layer
            x, weights = block(
                x, context, encoded, source_mask, incremental_state, self_attn_mask, is_chosen
            )
            states.append(x)
            if weights is not None and is_chosen:
                over_heads = weights.float().to(x)[:alignment_heads].mean(dim=0)
                (prompt_length,) = source.get("prompt_length", [0])
                attention = over_heads[:, :, prompt_length:]
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attention], "inner_states": states, **self.extra(context, source)}

    def context_of(self, words: Tensor, encoder_out: dict[str, Any]) -> BatchContext:
        """Return the blocks' context of a batch with `beam` rows per sentence."""
        (beam,) = encoder_out.get("beam", [1])
        (task_ids,) = encoder_out.get("task_ids") or [None]
        (tasks,) = encoder_out.get("tasks") or [None]
        (token_counts,) = encoder_out.get("token_counts") or [TokenCounts()]
        padding_mask = words.eq(self.padding_idx)
        has_padding = self.cross_self_attention or padding_mask.any()
        if task_ids is not None:
            task_ids = task_ids.repeat_interleave(beam)
        return BatchContext(task_ids, padding_mask if has_padding else None, token_counts, tasks)

    def extra(self, context: BatchContext, encoder_out: dict[str, Any]) -> dict[str, Any]:
        """Return extra output after a pass with this context."""
        return {}

    def _without_padding(self, gradient_VH: Tensor) -> Tensor:
        row = torch.tensor([self.padding_idx], device=gradient_VH.device)
        return gradient_VH.index_fill(0, row, 0)

    def _embedded(
        self, prev_output_tokens: Tensor, incremental_state: dict[str, Any] | None
    ) -> Tensor:
        """Return the words' embeddings, (L, B, H).

        In incremental decoding only the last word's.
        """
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(
                prev_output_tokens, incremental_state=incremental_state
            )
        if incremental_state is not None:
            prev_output_tokens = prev_output_tokens[:, -1:]
            if positions is not None:
                positions = positions[:, -1:]
        if self.begins_with_pad:  # </s> occurs only at the start of the decoder's input
            is_first = prev_output_tokens == self.dictionary.eos()
            prev_output_tokens = prev_output_tokens.masked_fill(is_first, self.padding_idx)
        x = self.embed_scale * self.embed_tokens(prev_output_tokens)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x += positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        embedded: Tensor = self.dropout_module(x).transpose(0, 1)
        return embedded

    def widen(self, incremental_state: dict[str, Any], beam: int) -> None:
        """Give each sentence `beam` rows instead of one.

        The caller sets `beam` in the encoder's output.
        """
        incremental_state[STATE].widen(beam)
        incremental_state.pop(TASKS, None)  # cached for the old rows

    def reorder_incremental_state_scripting(
        self, incremental_state: dict[str, Any], new_order: Tensor
    ) -> None:
        """Reorder as fairseq does: each row continues the row that `new_order` names."""
        if STATE in incremental_state:
            incremental_state[STATE].reorder(new_order)
        else:
            super().reorder_incremental_state_scripting(incremental_state, new_order)


def _of_search(
    encoder_out: dict[str, Any], incremental_state: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the encoder's output, with a cache for conditional modules in a search."""
    (tasks,) = encoder_out.get("tasks") or [None]
    if tasks is None or incremental_state is None or torch.is_grad_enabled():
        return encoder_out
    return {**encoder_out, "tasks": [incremental_state.setdefault(TASKS, tasks.keeping())]}
