"""Options of sparse translation models: fairseq's transformer options, the experts' and those of runs."""

from dataclasses import dataclass

from fairseq_mtmoe.options.experts import ExpertOptions
from fairseq_mtmoe.options.run import RunOptions
from fairseq_mtmoe.options.transformer import FlatTransformerConfig


@dataclass
class DenseConfig(RunOptions, FlatTransformerConfig):
    """The dense twin: fairseq's transformer options, and those of runs."""


@dataclass
class BaseMoEConfig(ExpertOptions, RunOptions, FlatTransformerConfig):
    """What `--arch base_moe…` adds to fairseq's transformer options."""
