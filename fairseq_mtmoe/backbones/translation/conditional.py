"""The transformer's stacks with blocks that adapt to each sentence's task: CA-MTL, §2.1, in encoder and decoder.

In both stacks self-attention is conditional in all blocks, norms in the upper half, alignment stands before the first
block, and a bottleneck is added to the last block's output, which it reads through a norm of its own. Of the decoder's
self-attention a word gets that part of its task's bias that is about the words before it; attention to the source has
none, since the places of source and target are not each other's neighbours. The encoder has the table of the tasks'
embeddings, and hands on with its output what the decoder needs of it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from torch import LongTensor, Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fairseq_mtmoe.backbones.blocks import Conditions, SlotPlans, aligned, expect_task_ids, with_bottleneck
from fairseq_mtmoe.backbones.translation.blocks import DecoderBlock, EncoderBlock, FairseqBlock
from fairseq_mtmoe.backbones.translation.decoding import STATE, BeamState
from fairseq_mtmoe.backbones.translation.stacks import Decoder, Encoder, FairseqStack
from fairseq_mtmoe.conditioning import ConditionalAlignment, ConditionalAttentionBias, ConditionalBottleneck
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.options import names_of_tasks
from fairseq_mtmoe.options.conditional import conditional_parts
from fairseq_mtmoe.slots import BatchContext

_NORMS = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm")


def conditions_of(cfg: Any) -> Conditions | None:
    """Those of a model's flat options, with `ConditionalOptions`; None where nothing adapts to tasks.

    Raises:
        UserError: an option is out of its range, or does not go with conditional parts.
    """
    parts = conditional_parts(cfg)
    if not parts:
        return None
    for name in ("cross_self_attention", "offload_activations"):
        if getattr(cfg, name):
            raise_invalid(f"--{name.replace('_', '-')}", "off with --conditional", True)
    return Conditions(parts, len(names_of_tasks(cfg)), cfg.encoder_embed_dim, cfg.conditional_positions)


class ConditionalBlock(FairseqBlock):
    """Mixed into a block: the parts that it gets when it is built."""

    attention_bias: ConditionalAttentionBias | None
    bottleneck: ConditionalBottleneck | None
    embed_dim: int

    def become_conditional(self, conditions: Conditions, index: int, count: int) -> None:
        """Get what block `index` of `count` has."""
        self.attention_bias = conditions.attention_bias(self.embed_dim)
        if index >= count // 2:
            conditions.condition_norms(self, _NORMS)
        self.bottleneck = conditions.bottleneck(self.embed_dim) if index == count - 1 else None
        if self.bottleneck is not None:
            self.register_forward_hook(add_bottleneck)

    def bias_of(self, x: Tensor, context: BatchContext) -> Tensor | None:
        """What is added to the scores of self-attention among the words of `x` (L, B, H), (B·A, L, L)."""
        if self.attention_bias is None:
            return None
        before = context.prompt_length  # these have no places, and no bias
        mask = context.padding_mask
        places = None if mask is None else places_of(mask[:, before:])
        bias_B1LL: Tensor = self.attention_bias(context.tasks, context.task_ids, len(x) - before, places)
        bias_B1LL = F.pad(bias_B1LL, (before, 0, before, 0)) if before else bias_B1LL
        return bias_B1LL.expand(-1, self.self_attn.num_heads, -1, -1).flatten(0, 1)


def add_bottleneck(block: Any, inputs: tuple[Any, ...], output: Any) -> Any:
    """A hook after a block's forward pass, whose output it completes: a stream, or a tuple that begins with one."""
    if isinstance(output, Tensor):
        return with_bottleneck(block.bottleneck, output, inputs[1])
    return (with_bottleneck(block.bottleneck, output[0], inputs[1]), *output[1:])


def places_of(padding_mask: Tensor) -> LongTensor:
    """The place of each token in its sentence, wherever padding is, (B, L); any at padding."""
    places: LongTensor = ((~padding_mask).cumsum(1) - 1).clamp(min=0)  # type: ignore[assignment]
    return places


class ConditionalEncoderBlock(ConditionalBlock, EncoderBlock):
    """The encoder's."""

    def attend(
        self, x: Tensor, context: BatchContext, attn_mask: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """As `EncoderBlock`'s, with the task's bias."""
        assert bias is None
        return super().attend(x, context, attn_mask, self.bias_of(x, context))


class ConditionalDecoderBlock(ConditionalBlock, DecoderBlock):
    """The decoder's."""

    def attend(
        self,
        x: Tensor,
        context: BatchContext,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: dict[str, Any] | None = None,
        self_attn_mask: Tensor | None = None,
    ) -> Tensor:
        """As `DecoderBlock`'s, with the task's bias."""
        if incremental_state is None:
            bias = self.bias_of(x, context)
        else:
            bias = self._bias_of_word(context, incremental_state[STATE])
        mask = bias if self_attn_mask is None or bias is None else self_attn_mask + bias
        mask = self_attn_mask if mask is None else mask
        return super().attend(x, context, encoder_out, encoder_padding_mask, incremental_state, mask)

    def _bias_of_word(self, context: BatchContext, state: BeamState) -> Tensor | None:
        """The same for the word that is being read, of which the words so far are looked at: (S, L)."""
        if self.attention_bias is None:
            return None
        assert context.tasks is not None and context.task_ids is not None
        bias_KL = self.attention_bias.row_of_tasks(context.tasks, state.length - 1)
        return bias_KL.index_select(0, context.task_ids[:: state.beam])


class ConditionalStack(FairseqStack):
    """Mixed into a stack of such blocks."""

    alignment: ConditionalAlignment | None

    def __init__(self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Module, slot_plans: SlotPlans,
                 conditions: Conditions, **options: Any) -> None:  # fmt: skip
        self.conditions = conditions
        super().__init__(cfg, dictionary, embed_tokens, slot_plans, **options)

    def fill_next(self, block: FairseqBlock, cfg: TransformerConfig) -> Any:
        """As `FairseqStack`'s; what computes blocks again in the backward pass gives tasks' embeddings gradients."""
        self.fill_slot(block)
        if cfg.checkpoint_activations:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        return fsdp_wrap(block, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)

    def before_blocks(self, x: Tensor, context: BatchContext) -> Tensor:
        """The embeddings (L, B, H), aligned."""
        return aligned(self.alignment, x, context)


class ConditionalEncoder(ConditionalStack, Encoder):
    """The encoder; a model without conditional parts has all of its other parameters."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.task_embeddings = self.conditions.embeddings()
        self.alignment = self.conditions.alignment(self.cfg.encoder.embed_dim)

    def build_encoder_layer(self, cfg: TransformerConfig) -> Any:
        """Called by fairseq."""
        block = ConditionalEncoderBlock(cfg)
        block.become_conditional(self.conditions, self.filled_slots, cfg.encoder.layers)
        return self.fill_next(block, cfg)

    def context_of(self, task_ids: LongTensor | None, padding_mask: Tensor | None) -> BatchContext:
        """With the tasks' embeddings. Raises `UserError` where nobody says which tasks the sentences are of."""
        expect_task_ids(task_ids)
        return BatchContext(task_ids, padding_mask, tasks=self.task_embeddings())


class ConditionalDecoder(ConditionalStack, Decoder):
    """The decoder."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.alignment = self.conditions.alignment(self.cfg.decoder.embed_dim)

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> Any:
        """Called by fairseq."""
        block = ConditionalDecoderBlock(cfg, no_encoder_attn)
        block.become_conditional(self.conditions, self.filled_slots, cfg.decoder.layers)
        return self.fill_next(block, cfg)
