"""Hugging Face's names of a translator's parameters, which are fairseq's but for a few, as a table."""

import re

OUR_EMBEDDINGS = ENCODER_EMBEDDINGS, DECODER_EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
OUR_OUTPUT, OUR_BIAS = "decoder.output_projection.weight", "decoder.output_projection.bias"
THEIR_PREFIX = "model."
SHARED, THEIR_OUTPUT, THEIR_BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
# Computed, not learned: Marian's and M2M-100's positions in files of older versions
SINUSOIDS = re.compile(r"model\.(encoder|decoder)\.embed_positions\.weights?")
# What fairseq's models hold beside parameters
COUNTERS = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)")
