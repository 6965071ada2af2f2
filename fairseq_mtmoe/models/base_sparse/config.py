"""Options of sparse translation models: fairseq's transformer options, the experts' and others of ours."""

from dataclasses import dataclass

from fairseq_mtmoe.options.conditional import ConditionalOptions
from fairseq_mtmoe.options.experts import ExpertOptions, RunOptions
from fairseq_mtmoe.options.transformer import FlatTransformerConfig


@dataclass
class DenseConfig(ConditionalOptions, RunOptions, FlatTransformerConfig):
    """The dense twin: fairseq's transformer options, those of conditional parts and those of runs."""


@dataclass
class BaseMoEConfig(ExpertOptions, ConditionalOptions, RunOptions, FlatTransformerConfig):
    """What `--arch base_moe…` adds to fairseq's transformer options."""
