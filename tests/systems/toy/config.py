"""The toy's options."""

from dataclasses import dataclass, field

from fairseq_mtmoe.core.transformer_options import FlatTransformerConfig
from fairseq_mtmoe.slots.options import ExpertOptions, RunOptions


@dataclass
class ToyConfig(ExpertOptions, RunOptions, FlatTransformerConfig):
    """What `--arch toy…` adds to fairseq's transformer options."""

    expert_gates: str = field(default="cosine", metadata={"help": "gate of the expert layers: cosine"})
    gate_sharpness: float = field(default=10.0, metadata={"help": "what the cosines are multiplied by, above 0"})
