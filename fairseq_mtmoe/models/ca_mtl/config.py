"""Options of CA-MTL: the encoder's sizes, and what of it adapts to tasks."""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass

from fairseq_mtmoe.conditioning import PARTS
from fairseq_mtmoe.options.conditional import EncoderConditionalOptions
from fairseq_mtmoe.options.experts import RunOptions
from fairseq_mtmoe.options.transformer import EncoderOptions


@dataclass
class CAMTLConfig(EncoderConditionalOptions, RunOptions, EncoderOptions, FairseqDataclass):
    """CA-MTL's defaults: all parts are conditional, and the lower half of the encoder keeps its pretrained weights."""

    conditional: str = field(
        default=",".join(PARTS),
        metadata={
            "help": "what adapts to each sentence's task: comma-separated parts of attention, norm, alignment and "
            "bottleneck, or none"
        },
    )
    freeze_layers: str = field(
        default="half",
        metadata={
            "help": "so many of the lowest blocks, or half of all, keep their pretrained weights, and with them the "
            "embeddings; parts of --conditional train there as elsewhere"
        },
    )
