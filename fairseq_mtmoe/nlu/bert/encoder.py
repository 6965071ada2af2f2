"""The encoder: embeddings and blocks.

It computes the states of Hugging Face's `BertModel` and `RobertaModel`.

It can adapt to each sentence's task as in CA-MTL, §2.1, in the base or the large form. In both
forms attention is conditional in all blocks, norms are conditional in the upper half, and alignment
comes before the first block. In the base form only the norms after feed-forward layers are
conditional, and a bottleneck adds to the last block's output. In the large form all norms are
conditional, and each block has a bottleneck beside it, `a_l = B_l(h_l + a_{l-1})`. The last
bottleneck's output is the encoder's.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import LongTensor, Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_mtmoe.conditioning import BOTTLENECK, ConditionalBottleneck
from fairseq_mtmoe.core.errors import raise_invalid
from fairseq_mtmoe.nlu.bert.attention import SelfAttention
from fairseq_mtmoe.nlu.bert.config import ACTIVATIONS, ROBERTA, EncoderConfig
from fairseq_mtmoe.nlu.bert.unpadding import UnpaddedBatch, unpadded
from fairseq_mtmoe.slots import AdapterPass, BatchContext, Block, ExpertSlot, adapted, dense
from fairseq_mtmoe.slots.blocks import Conditions, SlotPlans, Stack

_NORMS = ("self_attn_layer_norm", "final_layer_norm")


class Encoded(NamedTuple):
    """The output of an encoder."""

    # The last block's states, 0 at padding, (B, L, H); or of the first tokens only, (B, 1, H).
    hidden: Tensor
    # Input and weights of the adapters' gates in this pass; None without gates.
    adapter_pass: AdapterPass | None


class BertBlock(Block):
    """A post-norm block. A system that changes attention overrides `attend`."""

    normalize_before = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        H = config.hidden_size
        F = config.intermediate_size
        eps = config.layer_norm_eps
        self.self_attn = SelfAttention(
            H, config.num_attention_heads, config.attention_probs_dropout_prob
        )
        self.self_attn_layer_norm = nn.LayerNorm(H, eps)
        self.fc1 = nn.Linear(H, F)
        self.fc2 = nn.Linear(F, H)
        self.final_layer_norm = nn.LayerNorm(H, eps)
        self.activation_fn = ACTIVATIONS[config.hidden_act]
        self.activation_dropout_module = nn.Dropout(0.0)  # BERT has none there
        self.dropout_module = nn.Dropout(config.hidden_dropout_prob)
        self.begin_dense()
        initialize(self, config.initializer_range)

    def forward(self, x: Tensor, context: BatchContext, batch: UnpaddedBatch) -> Tensor:
        """Return the new stream, (L, B, H) or packed (1, T, H).

        `batch` and `context` have the same form.
        """
        return self.feed_forward(self.attend(x, context, batch), batch.output_context(context))

    def attend(self, x: Tensor, context: BatchContext, batch: UnpaddedBatch) -> Tensor:
        """Compute the block's first half, self-attention."""
        bias = None
        if self.attention_bias is not None:
            bias = self.attention_bias(context.tasks, batch.task_ids, batch.shape[1])
        attended = self.self_attn(x, batch, bias)
        output_context = batch.output_context(context)
        return self.after(self.self_attn_layer_norm, attended, batch.output_of(x), output_context)


class BertEncoder(Stack):
    """BERT's or RoBERTa's encoder with slots.

    A subclass overrides `build_encoder_layer` for its own blocks, `embed` for the embeddings, or
    `extend` to add to the stream.

    Args:
        slot_plans: the content of blocks' slots, by block index; empty for a dense encoder.
        conditions: conditional parts. Until they train, the encoder's output stays the same, except
            with the large form's bottlenecks.
        checkpoint_activations: store only each block's input, and recompute the block in the
            backward pass. Unlike fairseq's option of this name, tensors that blocks read outside
            the stream also get gradients.
    """

    side_chain: nn.ModuleList | None

    def __init__(
        self,
        config: EncoderConfig,
        slot_plans: SlotPlans | None = None,
        checkpoint_activations: bool = False,
        conditions: Conditions | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.checkpoint_activations = checkpoint_activations
        H = config.hidden_size
        pad = config.pad_token_id
        self.embed_tokens = nn.Embedding(config.vocab_size, H, padding_idx=pad)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, H)
        self.embed_segments = nn.Embedding(config.type_vocab_size, H)
        self.layernorm_embedding = nn.LayerNorm(H, config.layer_norm_eps)
        self.dropout_module = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList()
        self.pooler = nn.Linear(H, H) if config.has_pooler else None  # only for its file
        initialize(self, config.initializer_range)
        self.slot_plans = slot_plans or {}
        for _ in range(config.num_hidden_layers):
            self.layers.append(self.fill_slot(self.build_encoder_layer(config)))
        self.task_embeddings = self.alignment = self.side_chain = None
        if conditions is not None:
            self._become_conditional(conditions)

    def _become_conditional(self, conditions: Conditions) -> None:
        H = self.config.hidden_size
        blocks = [*self.layers]
        self.task_embeddings = conditions.embeddings()
        self.alignment = conditions.alignment(H)
        for block in blocks:
            block.attention_bias = conditions.attention_bias(H)
        for block in blocks[len(blocks) // 2 :]:
            conditions.condition_norms(block, _NORMS if conditions.is_large else _NORMS[1:])
        if not conditions.is_large:
            blocks[-1].bottleneck = conditions.bottleneck(H, self.config.layer_norm_eps)
        elif BOTTLENECK in conditions.parts:
            self.side_chain = nn.ModuleList(
                ConditionalBottleneck(H, H, begins_at_zero=False) for _ in blocks
            )

    def build_encoder_layer(self, config: EncoderConfig) -> BertBlock:
        """Return a new block; called once per block, in order."""
        return BertBlock(config)

    def forward(
        self,
        tokens: LongTensor,
        token_type_ids: LongTensor | None = None,
        task_ids: LongTensor | None = None,
        firsts_only: bool = False,
    ) -> Encoded:
        """Encode a batch.

        Args:
            tokens: (B, L), padded with `pad_token_id`.
            token_type_ids: the segment of each token, 0 or 1, (B, L); default: all 0.
            task_ids: each sentence's task, (B,), for slots and parts that depend on tasks.
            firsts_only: allow the last block to compute only the sentences' first tokens.
        """
        length = tokens.shape[1]
        most = self.config.max_positions
        if length > most:
            raise_invalid("the length of a sentence", f"at most the encoder's {most}", length)
        padding_mask = tokens.eq(self.config.pad_token_id)
        batch = unpadded(padding_mask, task_ids)
        context = batch.context(self.tasks_of(task_ids))
        x = self.aligned(self.embed(tokens, token_type_ids, batch), context)
        x, context, batch = self.extend(x, context, batch, padding_mask)
        last = batch
        if firsts_only and computes_alone(self.layers[-1]):
            last = replace(batch, firsts_only=True)
        hidden = last.output.pad(self.run_blocks(x, context, batch, last))[:, :length]
        hidden = hidden.masked_fill(padding_mask[:, : hidden.shape[1]].unsqueeze(-1), 0)
        return Encoded(hidden, context.adapter_pass)

    def embed(
        self, tokens: LongTensor, token_type_ids: LongTensor | None, batch: UnpaddedBatch
    ) -> Tensor:
        """Return the embedded tokens in the stream's form."""
        ids = [tokens, self._positions(tokens)]
        if token_type_ids is not None:
            ids.append(token_type_ids)
        token_ids, positions, *types = batch.unpad(torch.stack(ids, dim=-1)).unbind(-1)
        x = self.embed_tokens(token_ids) + self.embed_positions(positions)
        segments = self.embed_segments(types[0]) if types else self.embed_segments.weight[0]
        embedded: Tensor = self.dropout_module(self.layernorm_embedding(x + segments))
        return embedded

    def extend(
        self, x: Tensor, context: BatchContext, batch: UnpaddedBatch, padding_mask: Tensor
    ) -> tuple[Tensor, BatchContext, UnpaddedBatch]:
        """Return the stream before the first block, its context and its batch.

        A subclass may append positions to the tokens; the encoder's output leaves them out.
        `padding_mask` is (B, L).
        """
        return x, context, batch

    def run_blocks(
        self, x: Tensor, context: BatchContext, batch: UnpaddedBatch, last: UnpaddedBatch
    ) -> Tensor:
        """Run all blocks; return the last stream, or the large form's last bottleneck.

        last: the last block's batch.
        """
        chain: Tensor | None = None
        for index, block in enumerate(self.layers):
            batch = last if block is self.layers[-1] else batch
            x = self.run(block, x, context, batch)
            if self.side_chain is not None:
                narrowed = x if chain is None else x + batch.output_of(chain)
                chain = self.run(
                    self.side_chain[index],
                    narrowed,
                    context.tasks,
                    batch.output_context(context).task_ids,
                )
        return x if chain is None else chain

    def run(self, part: nn.Module, *inputs: Any) -> Tensor:
        """Call a part, such as a block, with activation checkpointing if it is on."""
        if self.checkpoint_activations and torch.is_grad_enabled():
            return checkpoint(part, *inputs, use_reentrant=False)  # type: ignore[no-any-return]
        output: Tensor = part(*inputs)
        return output

    def _positions(self, tokens: LongTensor) -> Tensor:
        """Return position ids (B, L): BERT counts all positions, RoBERTa skips padding."""
        if self.config.model_type == ROBERTA:
            real = tokens.ne(self.config.pad_token_id).long()
            return real.cumsum(1) * real + self.config.pad_token_id
        return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)


def initialize(module: nn.Module, std: float) -> None:
    """Initialize a module as BERT does: weights N(0, std²), biases and padding 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            nn.init.zeros_(part.weight[part.padding_idx])


def computes_alone(block: nn.Module) -> bool:
    """Return whether the feed-forward half treats each token alone, without counts."""
    assert isinstance(block, Block)
    if isinstance(block.slot, ExpertSlot):
        moe = block.slot.moe
        return moe is None or (moe.gate.routes_alone and not moe.load.enabled)
    # A gate's summary and the task sparsity loss may read all tokens
    return block.slot is dense or (block.slot is adapted and block.mixture.gate is None)
