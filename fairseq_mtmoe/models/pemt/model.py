"""PEMT on T5: adapters of source tasks beside all feed-forward layers, mixed by what the target shares with them.

Implements "PEMT: Multi-Task Correlation Guided Mixture-of-Experts Enables Parameter-Efficient Transfer Learning", §3.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from fairseq.models import BaseFairseqModel, register_model

from fairseq_mtmoe.backbones.t5.model import PUBLISHED, T5Model, begin, register_sizes, t5_config
from fairseq_mtmoe.models.pemt.borrowing import PemtModel, adapter_plan, beginnings
from fairseq_mtmoe.models.pemt.config import PemtT5Config
from fairseq_mtmoe.models.pemt.t5 import PemtT5Decoder, PemtT5Encoder


@register_model("pemt_t5", dataclass=PemtT5Config)
class PemtT5Model(PemtModel, T5Model):
    """A T5 that learns a source task, or borrows from some."""

    encoder_class = PemtT5Encoder
    decoder_class = PemtT5Decoder

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options of the model's own dataclass; defaults are left to the architecture."""
        BaseFairseqModel.add_args.__func__(cls, parser)

    @classmethod
    def build_model(cls, cfg: PemtT5Config, task: Any) -> PemtT5Model:
        """Called by fairseq.

        Raises:
            UserError: an option is wrong, or a source's file is not what it must be.
        """
        begun = beginnings(cfg, task)
        config = t5_config(cfg)
        plan = adapter_plan(cfg, begun.about, config.d_model)
        blocks = range(max(config.num_layers, config.num_decoder_layers))
        model = cls(config, task.target_dictionary, dict.fromkeys(blocks, plan))
        model.begin(cfg, begun)
        begin(model, task)
        return model


register_sizes("pemt_t5", PUBLISHED)
