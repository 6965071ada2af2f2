"""The toy's options."""

from dataclasses import dataclass, field

from fairseq_mtmoe.options.experts import ExpertOptions, RunOptions
from fairseq_mtmoe.options.transformer import FlatTransformerConfig


@dataclass
class ToyConfig(ExpertOptions, RunOptions, FlatTransformerConfig):
    """What `--arch toy…` adds to fairseq's transformer options."""

    expert_gates: str = field(default="cosine", metadata={"help": "gate of the expert layers: cosine"})
    gate_sharpness: float = field(default=10.0, metadata={"help": "what the cosines are multiplied by, above 0"})
