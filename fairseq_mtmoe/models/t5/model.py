"""T5 as it is pretrained, all of which is trained: what systems with few trained parameters are compared with.

"Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (Raffel et al., 2020), §2.1, §3.5.
"""

from dataclasses import dataclass
from typing import Any, Self

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model

from fairseq_mtmoe.backbones.sizes import register_sizes
from fairseq_mtmoe.backbones.t5.model import PUBLISHED, T5Model, begin, t5_config
from fairseq_mtmoe.options.experts import RunOptions
from fairseq_mtmoe.options.transformer import T5Options


@dataclass
class FineTunedT5Config(RunOptions, T5Options, FairseqDataclass):
    """A pretrained T5 and nothing else."""


@register_model("t5", dataclass=FineTunedT5Config)
class FineTunedT5(T5Model):
    """A T5 of `--task text_to_text`."""

    @classmethod
    def build_model(cls, cfg: FineTunedT5Config, task: Any) -> Self:
        """Called by fairseq. Raises `UserError` where a size is another one than the pretrained T5's."""
        model = cls(t5_config(cfg), task.target_dictionary)
        begin(model, task)
        return model


register_sizes("t5", PUBLISHED)
