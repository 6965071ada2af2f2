"""T5 as it is pretrained, all of which is trained: what systems with few trained parameters are compared with.

"Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer" (Raffel et al., 2020), §2.1, §3.5.
"""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model

from fairseq_mtmoe.backbones.t5.model import PUBLISHED, T5Model, begin, register_sizes, t5_config
from fairseq_mtmoe.models.t5.config import FineTunedT5Config


@register_model("t5", dataclass=FineTunedT5Config)
class FineTunedT5(T5Model):
    """A T5 of `--task text_to_text`."""

    @classmethod
    def build_model(cls, cfg: FineTunedT5Config, task: Any) -> FineTunedT5:
        """Called by fairseq. Raises `UserError` where a size is another one than the pretrained T5's."""
        model = cls(t5_config(cfg), task.target_dictionary)
        begin(model, task)
        return model


register_sizes("t5", PUBLISHED)
