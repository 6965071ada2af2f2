"""An encoder whose blocks adapt to each sentence's task: CA-MTL, §2.1, in its form for base and for large encoders.

In both, attention is conditional in all blocks, norms in the upper half, and alignment stands before the first block.
They differ in the norms, of which the base form takes those after feed-forward layers and the large form all, and in
the bottleneck. In the base form it is added to the last block's output, which it reads through a norm of its own. In
the large form every block has one, `a_l = B_l(h_l + a_{l-1})`, and the last one's output is the encoder's.
"""

from __future__ import annotations

from typing import Any

from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.backbones.bert.config import EncoderConfig
from fairseq_mtmoe.backbones.bert.encoder import BertBlock, BertEncoder
from fairseq_mtmoe.backbones.bert.unpadding import UnpaddedBatch
from fairseq_mtmoe.backbones.blocks import Conditions, SlotPlans, aligned, expect_task_ids, with_bottleneck
from fairseq_mtmoe.conditioning import BOTTLENECK, ConditionalAttentionBias, ConditionalBottleneck
from fairseq_mtmoe.slots import BatchContext

_NORMS = ("self_attn_layer_norm", "final_layer_norm")


class ConditionalBlock(BertBlock):
    """BERT's block with the parts that it is given after it was made."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.attention_bias: ConditionalAttentionBias | None = None
        self.bottleneck: ConditionalBottleneck | None = None

    def forward(self, x: Tensor, context: BatchContext, batch: UnpaddedBatch) -> Tensor:
        """As BERT's, and then its bottleneck."""
        return with_bottleneck(self.bottleneck, super().forward(x, context, batch), batch.output_context(context))

    def attend(self, x: Tensor, context: BatchContext, batch: UnpaddedBatch, bias: Tensor | None = None) -> Tensor:
        """As BERT's, with the task's bias."""
        if self.attention_bias is not None:
            assert bias is None
            bias = self.attention_bias(context.tasks, batch.task_ids, batch.shape[1])
        return super().attend(x, context, batch, bias)


class ConditionalEncoder(BertEncoder):
    """BERT's or RoBERTa's encoder that adapts to tasks; its parameters are a plain one's, and those of the conditions.

    Where nothing was trained it computes what the plain one does, but for the large form's bottlenecks.
    """

    def __init__(
        self,
        config: EncoderConfig,
        conditions: Conditions,
        slot_plans: SlotPlans | None = None,
        checkpoint_activations: bool = False,
    ) -> None:
        super().__init__(config, slot_plans, checkpoint_activations)
        H, is_large = config.hidden_size, conditions.is_large
        self.task_embeddings = conditions.embeddings()
        self.alignment = conditions.alignment(H)
        blocks: list[Any] = [*self.layers]
        for block in blocks:
            block.attention_bias = conditions.attention_bias(H)
        for block in blocks[len(blocks) // 2 :]:
            conditions.condition_norms(block, _NORMS if is_large else _NORMS[1:])
        self.side_chain: nn.ModuleList | None = None
        if not is_large:
            blocks[-1].bottleneck = conditions.bottleneck(H, config.layer_norm_eps)
        elif BOTTLENECK in conditions.parts:
            self.side_chain = nn.ModuleList(ConditionalBottleneck(H, H, begins_at_zero=False) for _ in self.layers)

    def build_encoder_layer(self, config: EncoderConfig) -> ConditionalBlock:
        """A block that may become conditional."""
        return ConditionalBlock(config)

    def context_of(self, batch: UnpaddedBatch) -> BatchContext:
        """With the tasks' embeddings. Raises `UserError` where nobody says which tasks the sentences are of."""
        expect_task_ids(batch.task_ids)
        return batch.context(self.task_embeddings())

    def embed(
        self, tokens: LongTensor, token_type_ids: LongTensor | None, context: BatchContext, batch: UnpaddedBatch
    ) -> Tensor:
        """BERT's embeddings, aligned."""
        return aligned(self.alignment, super().embed(tokens, token_type_ids, context, batch), context)

    def run_blocks(self, x: Tensor, context: BatchContext, batch: UnpaddedBatch, last: UnpaddedBatch) -> Tensor:
        """The last block's output; in the large form, that of the bottlenecks beside them."""
        if self.side_chain is None:
            return super().run_blocks(x, context, batch, last)
        chain: Tensor | None = None
        for block, bottleneck in zip(self.layers, self.side_chain, strict=True):
            batch = last if block is self.layers[-1] else batch
            x = self.run(block, x, context, batch)
            narrowed = x if chain is None else x + batch.output_of(chain)
            chain = self.run(bottleneck, narrowed, context.tasks, batch.output_context(context).task_ids)
        assert chain is not None
        return chain
