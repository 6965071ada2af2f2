"""The encoder: embeddings, blocks, pooler; what Hugging Face's `BertModel` and `RobertaModel` compute."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import LongTensor, Tensor, nn
from torch.utils.checkpoint import checkpoint

from fairseq_mtmoe.backbones.bert.attention import Dropout, SelfAttention
from fairseq_mtmoe.backbones.bert.config import ACTIVATIONS, ROBERTA, EncoderConfig
from fairseq_mtmoe.backbones.bert.unpadding import UnpaddedBatch, unpadded
from fairseq_mtmoe.backbones.blocks import Block, SlotPlans, Stack
from fairseq_mtmoe.errors import raise_invalid
from fairseq_mtmoe.slots import BatchContext, ExpertSlot, MixturePass, SlotBlock, adapted, dense


class Encoded(NamedTuple):
    """What comes out of an encoder.

    Attributes:
        hidden: the last block's states, 0 at padding, (B, L, H); or of the first tokens, (B, 1, H), if these suffice.
        pooled: tanh of a linear map of the first token's state, (B, H); None without a pooler.
        mixture: what gates of adapters read and left in this pass; None without such gates.
    """

    hidden: Tensor
    pooled: Tensor | None
    mixture: MixturePass | None = None


class BertBlock(Block):
    """A post-norm block. A system that changes attention overrides `attend`."""

    normalize_before = False

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        H, F, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps
        self.self_attn = SelfAttention(H, config.num_attention_heads, config.attention_probs_dropout_prob)
        self.self_attn_layer_norm = nn.LayerNorm(H, eps)
        self.fc1, self.fc2 = nn.Linear(H, F), nn.Linear(F, H)
        self.final_layer_norm = nn.LayerNorm(H, eps)
        self.activation_fn = ACTIVATIONS[config.hidden_act]
        self.activation_dropout_module = Dropout(0.0)  # BERT has none there
        self.dropout_module = Dropout(config.hidden_dropout_prob)
        self.slot = dense
        initialize(self, config.initializer_range)

    def forward(self, x: Tensor, context: BatchContext, batch: UnpaddedBatch) -> Tensor:
        """The new stream, (L, B, H) or (1, T, H) as `batch` has it; `context` is of that form, too."""
        return self.feed_forward(self.attend(x, context, batch), batch.output_context(context))

    def attend(self, x: Tensor, context: BatchContext, batch: UnpaddedBatch, bias: Tensor | None = None) -> Tensor:
        """The block's first half: self-attention, to whose scores `bias` is added, (L, L) or (B, 1, L, L)."""
        joined = self.join(self.self_attn(x, batch, bias), batch.output_of(x))
        return self.normalize(self.self_attn_layer_norm, joined, batch.output_context(context))


class BertEncoder(Stack):
    """BERT's or RoBERTa's encoder with slots.

    A subclass overrides `build_encoder_layer` to have blocks of its own, `context_of` for what they are told of the
    batch, `embed` for what comes before the first, and `run_blocks` for what is between them (see `conditional.py`);
    or `enter` to have more in the stream than the tokens.

    Args:
        config: its sizes.
        slot_plans: what stands in the slot of which block; none: a dense encoder.
        checkpoint_activations: keep of a block only what goes in, and compute it again in the backward pass. What
            gradients reach otherwise than through the stream (parameters of blocks below all that trains, tensors that
            a block closes over) gets them too, unlike under fairseq's option of the same name.
    """

    def __init__(
        self, config: EncoderConfig, slot_plans: SlotPlans | None = None, checkpoint_activations: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        self.checkpoint_activations = checkpoint_activations
        H, pad = config.hidden_size, config.pad_token_id
        self.embed_tokens = nn.Embedding(config.vocab_size, H, padding_idx=pad)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, H)
        self.embed_segments = nn.Embedding(config.type_vocab_size, H)
        self.layernorm_embedding = nn.LayerNorm(H, config.layer_norm_eps)
        self.dropout_module = Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList()
        self.pooler = nn.Linear(H, H) if config.has_pooler else None
        initialize(self, config.initializer_range)
        self.slot_plans = slot_plans or {}
        for _ in range(config.num_hidden_layers):
            self.layers.append(self.fill_slot(self.build_encoder_layer(config)))

    def build_encoder_layer(self, config: EncoderConfig) -> BertBlock:
        """Called for one block after the other; a system's block may be of a subclass."""
        return BertBlock(config)

    def forward(
        self,
        tokens: LongTensor,
        token_type_ids: LongTensor | None = None,
        padding_mask: Tensor | None = None,
        task_ids: LongTensor | None = None,
        firsts_only: bool = False,
    ) -> Encoded:
        """Encode a batch.

        Args:
            tokens: (B, L), padded with `pad_token_id`.
            token_type_ids: which of the two sentences a token is of, (B, L); all 0 by default.
            padding_mask: True at padding, (B, L); by default, where `tokens` are `pad_token_id`.
            task_ids: each sentence's task, (B,), for slots that tell tasks apart.
            firsts_only: the states of the sentences' first tokens suffice: the last block may compute no others.

        Raises `UserError` where sentences are longer than the encoder has positions.
        """
        length, most = tokens.shape[1], self.config.max_positions
        if length > most:
            raise_invalid("the length of a sentence", f"at most the encoder's {most}", length)
        mask = tokens.eq(self.config.pad_token_id) if padding_mask is None else padding_mask
        x, context, batch = self.enter(tokens, token_type_ids, mask, task_ids)
        last = batch.for_firsts() if firsts_only and computes_alone(self.layers[-1]) else batch
        hidden = last.output.pad(self.run_blocks(x, context, batch, last))[:, :length]
        hidden = hidden.masked_fill(mask[:, : hidden.shape[1]].unsqueeze(-1), 0)
        pooled = None if self.pooler is None else torch.tanh(self.pooler(hidden[:, 0]))
        return Encoded(hidden, pooled, context.mixture)

    def enter(
        self, tokens: LongTensor, token_type_ids: LongTensor | None, padding_mask: Tensor, task_ids: LongTensor | None
    ) -> tuple[Tensor, BatchContext, UnpaddedBatch]:
        """The stream before the first block, what the blocks may know of the batch, and which places the stream has.

        These begin with the tokens', (B, L); what comes after them is none of the output.
        """
        batch = unpadded(padding_mask, task_ids)
        context = self.context_of(batch)
        return self.embed(tokens, token_type_ids, context, batch), context, batch

    def context_of(self, batch: UnpaddedBatch) -> BatchContext:
        """What the blocks may know of the batch."""
        return batch.context()

    def embed(
        self, tokens: LongTensor, token_type_ids: LongTensor | None, context: BatchContext, batch: UnpaddedBatch
    ) -> Tensor:
        """The stream before the first block."""
        ids = [tokens, self._positions(tokens), *([] if token_type_ids is None else [token_type_ids])]
        own, positions, *types = batch.unpad(torch.stack(ids, dim=-1)).unbind(-1)
        x = self.embed_tokens(own) + self.embed_positions(positions)
        segments = self.embed_segments(types[0]) if types else self.embed_segments.weight[0]
        embedded: Tensor = self.dropout_module(self.layernorm_embedding(x + segments))
        return embedded

    def run_blocks(self, x: Tensor, context: BatchContext, batch: UnpaddedBatch, last: UnpaddedBatch) -> Tensor:
        """The stream after the last block, whose batch is `last`, (1, B, H) where this is `firsts_only`."""
        for block in self.layers:
            x = self.run(block, x, context, last if block is self.layers[-1] else batch)
        return x

    def run(self, part: nn.Module, *inputs: Any) -> Tensor:
        """What a part gives, such as a block; computed again in the backward pass if the encoder is to do so."""
        if self.checkpoint_activations and torch.is_grad_enabled():
            return checkpoint(part, *inputs, use_reentrant=False)  # type: ignore[no-any-return]
        output: Tensor = part(*inputs)
        return output

    def _positions(self, tokens: LongTensor) -> Tensor:
        """(B, L): BERT counts places, RoBERTa tokens that are no padding."""
        if self.config.model_type == ROBERTA:
            real = tokens.ne(self.config.pad_token_id).long()
            return real.cumsum(1) * real + self.config.pad_token_id
        return torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)


def initialize(module: nn.Module, std: float) -> None:
    """Give what is in a module so far BERT's initial values: N(0, std²), biases and the embedding of padding 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            nn.init.zeros_(part.weight[part.padding_idx])


def computes_alone(block: nn.Module) -> bool:
    """Whether a block's second half gives a token the same whatever others there are, and nobody counts them."""
    assert isinstance(block, SlotBlock)
    if isinstance(block.slot, ExpertSlot):
        moe = block.slot.moe
        return moe is None or (moe.gate.routes_alone and not moe.load.enabled)
    # A gate's summary, and the task sparsity loss, may be of all tokens.
    return block.slot is dense or (block.slot is adapted and block.mixture.gate is None)
