"""Names of a translator's parameters that differ between Hugging Face and fairseq."""

import re

THEIR_PREFIX = "model."
SHARED = "model.shared.weight"
THEIR_OUTPUT = "lm_head.weight"
THEIR_BIAS = "final_logits_bias"
# Marian's and M2M-100's position embeddings in old files, which are computed, not learned
SINUSOIDS = re.compile(r"model\.(encoder|decoder)\.embed_positions\.weights?")
# Buffers of fairseq's models
COUNTERS = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor)")
