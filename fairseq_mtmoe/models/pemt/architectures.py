"""The sizes of PEMT's models are those of their backbones; to be imported after the models, as fairseq wants it."""

from fairseq_mtmoe.backbones.bert import model as bert
from fairseq_mtmoe.backbones.t5 import model as t5
from fairseq_mtmoe.backbones.translation import model as translation

t5.register_sizes("pemt_t5", t5.PUBLISHED)
bert.register_sizes("pemt_bert", {"minilm": bert.MINILM, "base": bert.BASE, "large": bert.LARGE})
translation.register_sizes("pemt_translation")
