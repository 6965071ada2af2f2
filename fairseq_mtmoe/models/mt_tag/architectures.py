"""The paper's encoders (§4.3), under each model's name."""

from fairseq_mtmoe.models._encoder import base, large, minilm

SIZES = {"minilm": minilm, "bert_base": base, "bert_large": large}
