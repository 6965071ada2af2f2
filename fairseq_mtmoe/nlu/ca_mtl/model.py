"""CA-MTL: one pretrained encoder for all tasks, which adapts to each task.

Implements "Conditionally Adaptive Multi-Task Learning: Improving Transfer Learning in NLP Using
Fewer Parameters & Less Data", §2.1. Its sampling (§2.2) is `--sampling-method uncertainty`, which
works with every model.
"""

from dataclasses import dataclass
from typing import Any, Self

from fairseq.dataclass import FairseqDataclass
from fairseq.models import register_model

from fairseq_mtmoe.conditioning import PARTS
from fairseq_mtmoe.conditioning.options import EncoderConditionalOptions
from fairseq_mtmoe.core.options import names_of_tasks, option
from fairseq_mtmoe.core.sizes import register_sizes
from fairseq_mtmoe.core.transformer_options import EncoderOptions
from fairseq_mtmoe.nlu.bert.heads import heads_from_text
from fairseq_mtmoe.nlu.bert.model import BASE, LARGE, MINILM, EncoderModel, build_encoder
from fairseq_mtmoe.slots.options import RunOptions


@dataclass
class CAMTLConfig(EncoderConditionalOptions, RunOptions, EncoderOptions, FairseqDataclass):
    """Options of CA-MTL.

    By default all parts are conditional and the lower half of the encoder is frozen.
    """

    conditional: str = option(
        ",".join(PARTS),
        "parts that adapt to each sentence's task: a comma-separated list of attention, norm, "
        "alignment and bottleneck, or none",
    )
    freeze_layers: str = option(
        "half",
        "freeze this number of the lowest blocks (half: half of all blocks) and, above 0, the "
        "embeddings; parts of --conditional still train there",
    )


@register_model("ca_mtl", dataclass=CAMTLConfig)
class CAMTLModel(EncoderModel):
    """An encoder with conditional parts and a head for each task."""

    task_names: list[str]  # indexed by task id

    @classmethod
    def build_model(cls, cfg: CAMTLConfig, task: Any) -> Self:
        """Build the model for fairseq.

        Raises `UserError` if a size or an option of the conditional parts is wrong.
        """
        model = cls(build_encoder(cfg, task), heads_from_text(cfg.heads))
        model.task_names = names_of_tasks(cfg)
        return model


def large(args: Any) -> None:
    """Set the large size and, unless another is given, the large form."""
    args.conditional_form = getattr(args, "conditional_form", None) or "large"
    LARGE(args)


register_sizes("ca_mtl", {"minilm": MINILM, "base": BASE, "large": large})
