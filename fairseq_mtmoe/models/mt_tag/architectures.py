"""The paper's encoders (§4.3), under each model's name."""

from fairseq_mtmoe.backbones.bert.model import base, large, minilm

SIZES = {"minilm": minilm, "bert_base": base, "bert_large": large}
