"""Names of a translator's parameters that differ between Hugging Face and fairseq."""

import re

OUR_EMBEDDINGS = ENCODER_EMBEDDINGS, DECODER_EMBEDDINGS = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
OUR_OUTPUT, OUR_BIAS = "decoder.output_projection.weight", "decoder.output_projection.bias"
THEIR_PREFIX = "model."
SHARED, THEIR_OUTPUT, THEIR_BIAS = "model.shared.weight", "lm_head.weight", "final_logits_bias"
# Marian's and M2M-100's position embeddings in old files, which are computed, not learned
SINUSOIDS = re.compile(r"model\.(encoder|decoder)\.embed_positions\.weights?")
# Buffers of fairseq's models
COUNTERS = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)")
