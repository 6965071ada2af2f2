"""CA-MTL: one pretrained encoder for all tasks that adapts itself to each.

Implements "Conditionally Adaptive Multi-Task Learning: Improving Transfer Learning in NLP Using Fewer Parameters & Less
Data", §2.1; its sampling (§2.2) is `--sampling-method uncertainty`, for every model.
"""

from __future__ import annotations

from typing import Any

from fairseq.models import register_model

from fairseq_mtmoe.backbones.bert.heads import heads_from_text
from fairseq_mtmoe.backbones.bert.model import BASE, LARGE, MINILM, EncoderModel, build_encoder, register_sizes
from fairseq_mtmoe.models.ca_mtl.config import CAMTLConfig
from fairseq_mtmoe.options import names_of_tasks


@register_model("ca_mtl", dataclass=CAMTLConfig)
class CAMTLModel(EncoderModel):
    """An encoder with conditional parts, and a head for each task.

    Attributes:
        task_names: the names behind the task ids.
    """

    task_names: list[str]

    @classmethod
    def build_model(cls, cfg: CAMTLConfig, task: Any) -> CAMTLModel:
        """Called by fairseq. Raises `UserError` where a size or an option of the conditional parts is wrong."""
        model = cls(build_encoder(cfg, task), heads_from_text(cfg.heads))
        model.task_names = names_of_tasks(cfg)
        return model


def large(args: Any) -> None:
    """The large size in the large form."""
    args.conditional_form = getattr(args, "conditional_form", None) or "large"
    LARGE(args)


register_sizes("ca_mtl", {"minilm": MINILM, "base": BASE, "large": large})
