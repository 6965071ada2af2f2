"""The paper's encoders (§4.3), under each model's name."""

from fairseq_mtmoe.backbones.bert.model import BASE, LARGE, MINILM

SIZES = {"minilm": MINILM, "bert_base": BASE, "bert_large": LARGE}
