"""The toy's options."""

from dataclasses import dataclass

from fairseq_mtmoe.options.experts import ExpertOptions
from fairseq_mtmoe.options.run import RunOptions
from fairseq_mtmoe.options.transformer import FlatTransformerConfig


@dataclass
class ToyConfig(ExpertOptions, RunOptions, FlatTransformerConfig):
    """What `--arch toy…` adds to fairseq's transformer options."""

    expert_gates: str = "cosine"
