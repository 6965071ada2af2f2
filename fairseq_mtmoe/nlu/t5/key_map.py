"""Table of Hugging Face's names of a T5's parameters and ours.

Ours are fairseq's.
"""

import re

from fairseq_mtmoe.checkpoints.hugging_face import KeyMap


def _attention(theirs: str, norm: str, ours: str) -> dict[str, str]:
    projections = {f"{theirs}.{letter}": f"{ours}.{letter}_proj" for letter in "qkv"}
    return {**projections, f"{theirs}.o": f"{ours}.out_proj", norm: f"{ours}_layer_norm"}


# Hugging Face's part of a block -> ours
SELF_ATTENTION = _attention("layer.0.SelfAttention", "layer.0.layer_norm", "self_attn")
TO_SOURCE = _attention("layer.1.EncDecAttention", "layer.1.layer_norm", "encoder_attn")
NORM = {"layer_norm": "final_layer_norm"}
FEED_FORWARD = {
    False: {"DenseReluDense.wi": "fc1", "DenseReluDense.wo": "fc2", **NORM},  # of T5 1.0
    True: {
        "DenseReluDense.wi_0": "fc1",
        "DenseReluDense.wi_1": "fc1_gate",
        "DenseReluDense.wo": "fc2",
        **NORM,
    },  # 1.1
}
# Copies of the embeddings, and an unused bias in old files
IGNORED = re.compile(
    r"(encoder|decoder)\.embed_tokens\.weight"
    r"|decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight"
)


def _key_map(is_gated: bool) -> KeyMap:
    modules = {"shared": "encoder.embed_tokens", "lm_head": "decoder.output_projection"}
    for stack, last in (("encoder", 1), ("decoder", 2)):
        parts = {**SELF_ATTENTION, **(TO_SOURCE if stack == "decoder" else {})}
        parts |= {f"layer.{last}.{theirs}": ours for theirs, ours in FEED_FORWARD[is_gated].items()}
        modules |= {
            f"{stack}.block.{{}}.{theirs}": f"{stack}.layers.{{}}.{ours}"
            for theirs, ours in parts.items()
        }
        # The first block holds what all of them share
        shared = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
        modules |= {
            shared: f"{stack}.relative_positions",
            f"{stack}.final_layer_norm": f"{stack}.layer_norm",
        }
    return KeyMap(modules, {"weight": "weight"}, IGNORED)


KEYS = {is_gated: _key_map(is_gated) for is_gated in (False, True)}  # by `T5Config.is_gated`
