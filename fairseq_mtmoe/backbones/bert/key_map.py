"""Hugging Face's names of an encoder's parameters, and ours, as a table.

Ours are fairseq's, as in the translation backbone: what makes experts of a feed-forward layer knows both.
"""

from __future__ import annotations

import re

# Hugging Face's module -> ours; each has a `weight`, and most a `bias`. `{}` is a block's index.
MODULES = {
    "embeddings.word_embeddings": "embed_tokens",
    "embeddings.position_embeddings": "embed_positions",
    "embeddings.token_type_embeddings": "embed_segments",
    "embeddings.LayerNorm": "layernorm_embedding",
    "encoder.layer.{}.attention.self.query": "layers.{}.self_attn.q_proj",
    "encoder.layer.{}.attention.self.key": "layers.{}.self_attn.k_proj",
    "encoder.layer.{}.attention.self.value": "layers.{}.self_attn.v_proj",
    "encoder.layer.{}.attention.output.dense": "layers.{}.self_attn.out_proj",
    "encoder.layer.{}.attention.output.LayerNorm": "layers.{}.self_attn_layer_norm",
    "encoder.layer.{}.intermediate.dense": "layers.{}.fc1",
    "encoder.layer.{}.output.dense": "layers.{}.fc2",
    "encoder.layer.{}.output.LayerNorm": "layers.{}.final_layer_norm",
    "pooler.dense": "pooler",
}
# What a norm's parameters were called until 2019 -> since then
OLD_NAMES = {"gamma": "weight", "beta": "bias"}
# The encoder's name in a model with heads
PREFIXES = ("bert.", "roberta.")
# Heads, and buffers of older versions: no part of the encoder
IGNORED = re.compile(r"(cls|lm_head|classifier|qa_outputs)\..*|embeddings\.(position_ids|token_type_ids)")

_OURS_TO_THEIRS = {ours: theirs for theirs, ours in MODULES.items()}
_INDEX = re.compile(r"(?<=\.layer\.)(0|[1-9]\d{0,5})(?=\.)|(?<=^layers\.)\d+(?=\.)")


def our_key(key: str) -> str | None:
    """Our name of a parameter of Hugging Face's; None for what is no part of the encoder.

    Raises:
        KeyError: neither BERT nor RoBERTa has a parameter of this name.
    """
    prefix = next((prefix for prefix in PREFIXES if key.startswith(prefix)), "")
    inner = key.removeprefix(prefix)
    if IGNORED.fullmatch(inner):
        return None
    module, _, parameter = inner.rpartition(".")
    return f"{_translated(module, MODULES)}.{OLD_NAMES.get(parameter, parameter)}"


def hugging_face_key(key: str) -> str:
    """Hugging Face's name of one of our parameters, in an encoder without heads."""
    module, _, parameter = key.rpartition(".")
    return f"{_translated(module, _OURS_TO_THEIRS)}.{parameter}"


def _translated(module: str, table: dict[str, str]) -> str:
    found = _INDEX.search(module)
    if found is not None:
        return table[_INDEX.sub("{}", module, count=1)].format(found[0])
    if "{}" in module:
        raise KeyError(module)
    return table[module]
