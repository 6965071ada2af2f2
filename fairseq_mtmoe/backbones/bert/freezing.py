"""An encoder whose lower part keeps its pretrained weights, as in CA-MTL (§4): what adapts to tasks alone trains there.

What needs no gradient gets none, and nothing of an optimizer; where no part that trains comes before a block, autograd
goes no further back than to it.
"""

from __future__ import annotations

from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.conditioning import conditional_names


def freeze(encoder: BertEncoder, num_blocks: int) -> None:
    """Keep the lowest `num_blocks` blocks, and if there are any the embeddings, but for what is conditional of them."""
    if not num_blocks:
        return
    frozen = ("embed_", "layernorm_embedding.", *(f"layers.{index}." for index in range(num_blocks)))
    adapts = set(conditional_names(encoder))
    for name, parameter in encoder.named_parameters():
        if name.startswith(frozen) and name not in adapts:
            parameter.requires_grad_(False)
