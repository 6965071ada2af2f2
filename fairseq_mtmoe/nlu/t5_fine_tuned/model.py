"""A pretrained T5 whose weights all train, a baseline for other systems.

"Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (Raffel et al.,
2020), §2.1, §3.5.
"""

from dataclasses import dataclass
from typing import Any, Self

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model

from fairseq_mtmoe.core.sizes import register_sizes
from fairseq_mtmoe.core.transformer_options import T5Options
from fairseq_mtmoe.nlu.t5.model import PUBLISHED, T5Model, begin, t5_config
from fairseq_mtmoe.slots.options import RunOptions


@dataclass
class FineTunedT5Config(RunOptions, T5Options, FairseqDataclass):
    """Options of a pretrained T5 without additions."""


@register_model("t5", dataclass=FineTunedT5Config)
class FineTunedT5(T5Model):
    """A T5 for `--task text_to_text`."""

    @classmethod
    def build_model(cls, cfg: FineTunedT5Config, task: Any) -> Self:
        """Build the model for fairseq.

        Raises `UserError` if a size differs from the pretrained T5's.
        """
        model = cls(t5_config(cfg), task.target_dictionary)
        begin(model, task)
        return model


register_sizes("t5", PUBLISHED)
