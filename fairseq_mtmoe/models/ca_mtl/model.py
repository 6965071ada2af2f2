"""CA-MTL: one pretrained encoder for all tasks that adapts itself to each.

Implements "Conditionally Adaptive Multi-Task Learning: Improving Transfer Learning in NLP Using Fewer Parameters & Less
Data", §2.1; its sampling (§2.2) is `--sampling-method uncertainty`, for every model.
"""

from dataclasses import dataclass
from typing import Any, Self

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model

from fairseq_mtmoe.backbones.bert.heads import heads_from_text
from fairseq_mtmoe.backbones.bert.model import BASE, LARGE, MINILM, EncoderModel, build_encoder
from fairseq_mtmoe.backbones.sizes import register_sizes
from fairseq_mtmoe.conditioning import PARTS
from fairseq_mtmoe.options import names_of_tasks, option
from fairseq_mtmoe.options.conditional import EncoderConditionalOptions
from fairseq_mtmoe.options.experts import RunOptions
from fairseq_mtmoe.options.transformer import EncoderOptions


@dataclass
class CAMTLConfig(EncoderConditionalOptions, RunOptions, EncoderOptions, FairseqDataclass):
    """CA-MTL's defaults: all parts are conditional, and the lower half of the encoder keeps its pretrained weights."""

    conditional: str = option(
        ",".join(PARTS),
        "what adapts to each sentence's task: comma-separated parts of attention, norm, alignment and bottleneck, or "
        "none",
    )
    freeze_layers: str = option(
        "half",
        "so many of the lowest blocks, or half of all, keep their pretrained weights, and with them the embeddings; "
        "parts of --conditional train there as elsewhere",
    )


@register_model("ca_mtl", dataclass=CAMTLConfig)
class CAMTLModel(EncoderModel):
    """An encoder with conditional parts, and a head for each task."""

    task_names: list[str]  # behind the task ids

    @classmethod
    def build_model(cls, cfg: CAMTLConfig, task: Any) -> Self:
        """Called by fairseq. Raises `UserError` where a size or an option of the conditional parts is wrong."""
        model = cls(build_encoder(cfg, task), heads_from_text(cfg.heads))
        model.task_names = names_of_tasks(cfg)
        return model


def large(args: Any) -> None:
    """The large size in the large form."""
    args.conditional_form = getattr(args, "conditional_form", None) or "large"
    LARGE(args)


register_sizes("ca_mtl", {"minilm": MINILM, "base": BASE, "large": large})
