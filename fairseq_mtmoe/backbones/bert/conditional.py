"""An encoder whose blocks adapt to each sentence's task: CA-MTL, §2.1, in its form for base and for large encoders.

In both, attention is conditional in all blocks, norms in the upper half, and alignment stands before the first block.
They differ in the norms, of which the base form takes those after feed-forward layers and the large form all, and in
the bottleneck. In the base form it is added to the last block's output, which it reads through a norm of its own. In
the large form every block has one, `a_l = B_l(h_l + a_{l-1})`, and the last one's output is the encoder's.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.backbones.bert.blocks import BertBlock
from fairseq_mtmoe.backbones.bert.config import EncoderConfig
from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.backbones.bert.rows import Rows
from fairseq_mtmoe.backbones.blocks import SlotPlans
from fairseq_mtmoe.conditioning import (
    ALIGNMENT,
    ATTENTION,
    BOTTLENECK,
    NORM,
    ConditionalAlignment,
    ConditionalAttentionBias,
    ConditionalBottleneck,
    ConditionalLayerNorm,
    TaskEmbeddings,
    block_width,
)
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.slots import BatchContext


@dataclass(frozen=True)
class Conditions:
    """What of an encoder is conditional.

    Attributes:
        parts: some of `conditioning.PARTS`.
        num_tasks: K.
        positions: those whose bias conditional attention learns.
        is_large: whether the encoder has the large form.
    """

    parts: frozenset[str]
    num_tasks: int
    positions: int
    is_large: bool


class ConditionalBlock(BertBlock):
    """BERT's block with the parts that it is given after it was made."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.attention_bias: ConditionalAttentionBias | None = None
        self.bottleneck: ConditionalBottleneck | None = None

    def forward(self, x: Tensor, context: BatchContext, rows: Rows) -> Tensor:
        """As BERT's, and then its bottleneck."""
        h = super().forward(x, context, rows)
        if self.bottleneck is None:
            return h
        context = rows.output_context(context)
        added: Tensor = self.bottleneck(h, context.tasks, context.task_ids)
        return h + added

    def attend(self, x: Tensor, context: BatchContext, rows: Rows, bias: Tensor | None = None) -> Tensor:
        """As BERT's, with the task's bias."""
        if self.attention_bias is not None:
            assert bias is None
            bias = self.attention_bias(context.tasks, rows.task_ids_of_sentences(context), rows.shape[1])
        return super().attend(x, context, rows, bias)


class ConditionalEncoder(BertEncoder):
    """BERT's or RoBERTa's encoder that adapts to tasks; its parameters are a plain one's, and those of the conditions.

    Where nothing was trained it computes what the plain one does, but for the large form's bottlenecks.

    Args:
        config: its sizes.
        conditions: what of it is conditional.
        slot_plans, checkpoint_activations: as `BertEncoder`'s.
    """

    def __init__(
        self,
        config: EncoderConfig,
        conditions: Conditions,
        slot_plans: SlotPlans | None = None,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__(config, slot_plans, checkpoint_activations)
        H, parts = config.hidden_size, conditions.parts
        self.task_embeddings = TaskEmbeddings(conditions.num_tasks, H, transforms=parts != {ALIGNMENT})
        self.alignment = ConditionalAlignment(H, H) if ALIGNMENT in parts else None
        if ATTENTION in parts:
            for block in self.layers:
                width = block_width(conditions.positions, H)
                block.attention_bias = ConditionalAttentionBias(H, conditions.positions, width)
        if NORM in parts:
            lower = config.num_hidden_layers // 2
            for block in self.layers[lower:]:
                _make_norms_conditional(block, conditions.is_large)
        self.side_chain: nn.ModuleList | None = None
        if BOTTLENECK in parts and conditions.is_large:
            self.side_chain = nn.ModuleList(ConditionalBottleneck(H, H, begins_at_zero=False) for _ in self.layers)
        elif BOTTLENECK in parts:
            norm = nn.LayerNorm(H, config.layer_norm_eps)
            norm = ConditionalLayerNorm.from_norm(norm, H) if NORM in parts else norm
            self.layers[-1].bottleneck = ConditionalBottleneck(H, H, begins_at_zero=True, norm=norm)

    def build_encoder_layer(self, config: EncoderConfig) -> ConditionalBlock:
        """A block that may become conditional."""
        return ConditionalBlock(config)

    def context_of(self, rows: Rows, task_ids: LongTensor | None) -> BatchContext:
        """With the tasks' embeddings.

        Raises:
            UserError: nobody says which tasks the sentences are of.
        """
        if task_ids is None:
            raise UserError("`task_ids` must be given to an encoder that adapts to tasks, but are None instead.")
        return rows.context(task_ids, self.task_embeddings())

    def embed(self, tokens: LongTensor, token_type_ids: LongTensor | None, context: BatchContext, rows: Rows) -> Tensor:
        """BERT's embeddings, aligned."""
        x = super().embed(tokens, token_type_ids, context, rows)
        if self.alignment is None:
            return x
        aligned: Tensor = self.alignment(x, context.tasks, context.task_ids)
        return aligned

    def run_blocks(self, x: Tensor, context: BatchContext, rows: Rows, last: Rows) -> Tensor:
        """The last block's output; in the large form, that of the bottlenecks beside them."""
        if self.side_chain is None:
            return super().run_blocks(x, context, rows, last)
        chain: Tensor | None = None
        for block, bottleneck in zip(self.layers, self.side_chain, strict=True):
            rows = last if block is self.layers[-1] else rows
            x = self.run(block, x, context, rows)
            narrowed = x if chain is None else x + rows.output_of(chain)
            chain = self.run(bottleneck, narrowed, context.tasks, rows.output_context(context).task_ids)
        assert chain is not None
        return chain


def _make_norms_conditional(block: nn.Module, all_of_them: bool) -> None:
    names = ("self_attn_layer_norm", "final_layer_norm")
    for name in names if all_of_them else names[1:]:
        norm = getattr(block, name)
        setattr(block, name, ConditionalLayerNorm.from_norm(norm, norm.normalized_shape[0]))
