"""BERT's block, with the seams `attend` and `feed_forward`, and a slot."""

from __future__ import annotations

from torch import Tensor, nn

from fairseq_mtmoe.backbones.bert.attention import SelfAttention
from fairseq_mtmoe.backbones.bert.config import ACTIVATIONS, EncoderConfig
from fairseq_mtmoe.backbones.bert.dropout import Dropout
from fairseq_mtmoe.backbones.bert.rows import Rows
from fairseq_mtmoe.backbones.blocks import Block
from fairseq_mtmoe.slots import BatchContext, dense


def initialize(module: nn.Module, std: float) -> None:
    """Give what is in a module so far BERT's initial values: N(0, std²), biases and the embedding of padding 0."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, nn.Linear):
            nn.init.zeros_(part.bias)
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            nn.init.zeros_(part.weight[part.padding_idx])


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

    def forward(self, x: Tensor, context: BatchContext, rows: Rows) -> Tensor:
        """The new stream, (L, B, H) or (1, T, H) as `rows` has it; `context` is of that form, too: see `rows.py`."""
        return self.feed_forward(self.attend(x, context, rows), rows.output_context(context))

    def attend(self, x: Tensor, context: BatchContext, rows: Rows, bias: Tensor | None = None) -> Tensor:
        """The block's first half: self-attention, to whose scores `bias` is added, (L, L) or (B, 1, L, L)."""
        joined = self.join(self.self_attn(x, rows, bias), rows.output_of(x))
        return self.normalize(self.self_attn_layer_norm, joined, rows.output_context(context))
