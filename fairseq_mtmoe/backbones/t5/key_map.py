"""Hugging Face's names of a T5's parameters, and ours, as a table.

Ours are fairseq's, as in the other backbones. All are weights: T5 has no biases.
"""

from __future__ import annotations

import re

EMBEDDINGS, OUTPUT = "shared.weight", "lm_head.weight"
OUR_EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # one tensor
OUR_OUTPUT = "decoder.output_projection.weight"
# Hugging Face's module in a block -> ours; encoder blocks have two parts, decoder blocks three.
SELF_ATTENTION = {
    "layer.0.SelfAttention.q": "self_attn.q_proj",
    "layer.0.SelfAttention.k": "self_attn.k_proj",
    "layer.0.SelfAttention.v": "self_attn.v_proj",
    "layer.0.SelfAttention.o": "self_attn.out_proj",
    "layer.0.layer_norm": "self_attn_layer_norm",
}
TO_SOURCE = {
    "layer.1.EncDecAttention.q": "encoder_attn.q_proj",
    "layer.1.EncDecAttention.k": "encoder_attn.k_proj",
    "layer.1.EncDecAttention.v": "encoder_attn.v_proj",
    "layer.1.EncDecAttention.o": "encoder_attn.out_proj",
    "layer.1.layer_norm": "encoder_attn_layer_norm",
}
FEED_FORWARD = {
    "layer.{}.DenseReluDense.wi": "fc1",  # of T5 as published
    "layer.{}.DenseReluDense.wi_0": "fc1",  # of T5 1.1
    "layer.{}.DenseReluDense.wi_1": "fc1_gate",
    "layer.{}.DenseReluDense.wo": "fc2",
    "layer.{}.layer_norm": "final_layer_norm",
}
# Outside of blocks; the first block holds what all of them share.
IN_A_STACK = {
    "block.0.layer.0.SelfAttention.relative_attention_bias": "relative_positions",
    "final_layer_norm": "layer_norm",
}
# Copies of the embeddings, and a bias that old files have and that nothing reads.
IGNORED = re.compile(
    r"(encoder|decoder)\.embed_tokens\.weight|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
)

_BLOCKS = {
    "encoder": {**SELF_ATTENTION, **{key.format(1): name for key, name in FEED_FORWARD.items()}},
    "decoder": {**SELF_ATTENTION, **TO_SOURCE, **{key.format(2): name for key, name in FEED_FORWARD.items()}},
}
_THEIR_BLOCK = re.compile(r"block\.(0|[1-9]\d{0,5})\.(.*)")
_OUR_BLOCK = re.compile(r"layers\.(\d+)\.(.*)")


def our_key(key: str) -> str | None:
    """Our name of a parameter of Hugging Face's; None for what is there twice, or for nothing.

    Raises:
        KeyError: no T5 has a parameter of this name.
    """
    if key in (EMBEDDINGS, OUTPUT):
        return OUR_EMBEDDINGS[0] if key == EMBEDDINGS else OUR_OUTPUT
    if IGNORED.fullmatch(key):
        return None
    stack, _, inner = key.removesuffix(".weight").partition(".")
    if not key.endswith(".weight"):
        raise KeyError(key)
    if inner in IN_A_STACK:
        return f"{stack}.{IN_A_STACK[inner]}.weight"
    found = _THEIR_BLOCK.fullmatch(inner)
    if found is None:
        raise KeyError(key)
    return f"{stack}.layers.{found[1]}.{_BLOCKS[stack][found[2]]}.weight"


def hugging_face_key(key: str, is_gated: bool) -> str:
    """Hugging Face's name of one of our parameters, in a T5 with gated feed-forward layers or without."""
    if key in (*OUR_EMBEDDINGS, OUR_OUTPUT):
        return OUTPUT if key == OUR_OUTPUT else EMBEDDINGS
    stack, _, inner = key.removesuffix(".weight").partition(".")
    found = _OUR_BLOCK.fullmatch(inner)
    if found is None:
        return f"{stack}.{_reverse(IN_A_STACK)[inner]}.weight"
    left_out = "wi" if is_gated else "wi_0"
    names = _reverse({key: name for key, name in _BLOCKS[stack].items() if not key.endswith(f".{left_out}")})
    return f"{stack}.block.{found[1]}.{names[found[2]]}.weight"


def _reverse(table: dict[str, str]) -> dict[str, str]:
    return {ours: theirs for theirs, ours in table.items()}
