"""Options of T5: its sizes."""

from dataclasses import dataclass

from fairseq.dataclass import FairseqDataclass

from fairseq_mtmoe.options.experts import RunOptions
from fairseq_mtmoe.options.transformer import T5Options


@dataclass
class FineTunedT5Config(RunOptions, T5Options, FairseqDataclass):
    """A pretrained T5 and nothing else."""
