"""Table of Hugging Face's names of an encoder's parameters and ours.

Ours are fairseq's.
"""

import re

from fairseq_mtmoe.checkpoints.hugging_face import KeyMap

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
# Hugging Face's name -> ours; until 2019 norms had `gamma` and `beta`
PARAMETERS = {"gamma": "weight", "beta": "bias", "weight": "weight", "bias": "bias"}
# Heads and buffers of older versions, which are not part of the encoder
IGNORED = re.compile(
    r"(cls|lm_head|classifier|qa_outputs)\..*|embeddings\.(position_ids|token_type_ids)"
)

# The keys of the encoder in a model with heads.
KEYS = KeyMap(MODULES, PARAMETERS, IGNORED, prefixes=("bert.", "roberta."))
