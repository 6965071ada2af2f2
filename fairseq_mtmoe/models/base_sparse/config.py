"""Options of sparse translation models: fairseq's transformer options and the experts'."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq_mtmoe.models._common.flat_options import FlatTransformerConfig
from fairseq_mtmoe.models._common.run_options import RunOptions


@dataclass
class DenseConfig(RunOptions, FlatTransformerConfig):
    """The dense twin: fairseq's transformer options, and those of runs."""


@dataclass
class BaseMoEConfig(RunOptions, FlatTransformerConfig):
    """What `--arch base_moe…` adds to fairseq's transformer options."""

    num_experts: int = field(
        default=16, metadata={"help": "experts per expert layer, independent of the number of processes"}
    )
    expert_gates: str = field(
        default="base",
        metadata={"help": "gate of the expert layers: base, task or switch, or a repeating pattern such as base,task"},
    )
    expert_interval: int = field(
        default=2, metadata={"help": "every how many blocks, of encoder and decoder, one has experts"}
    )
    expert_combine: str = field(
        default="preserving",
        metadata={
            "help": "how an expert's output joins the block: 'paper' scales it by the gate's value; 'preserving' by "
            "one plus a learned share of it that starts at zero: sparsifying a dense model leaves its output as it was"
        },
    )
    dense_updates: int = field(
        default=0,
        metadata={"help": "train dense for so many updates, then make each expert a copy of its block's feed-forward"},
    )
    task_names: Optional[str] = field(
        default=None,
        metadata={"help": "comma-separated names of the tasks that gates tell apart; a multilingual task fills it in"},
    )
