"""Options of multi-task encoders: the encoder's sizes, and the experts'."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import FairseqDataclass

from fairseq_mtmoe.options.conditional import EncoderConditionalOptions
from fairseq_mtmoe.options.experts import ExpertOptions, RunOptions
from fairseq_mtmoe.options.transformer import EncoderOptions


@dataclass
class MTDenseConfig(RunOptions, EncoderOptions, FairseqDataclass):
    """A dense encoder with a head for each task: MT-Dense, or Single-Task where there is one."""


@dataclass
class MTTaGConfig(EncoderConditionalOptions, ExpertOptions, RunOptions, EncoderOptions, FairseqDataclass):
    """MT-TaG's defaults: in every block four experts and a gate for each task."""

    num_experts: int = field(default=4, metadata={"help": "experts per block, copies of its feed-forward layer"})
    expert_gates: str = field(default="task", metadata={"help": "gate of the experts: task (MT-TaG), switch or base"})
    expert_interval: int = field(default=1, metadata={"help": "every how many blocks one has experts"})
    reuse_gate: Optional[str] = field(
        default=None,
        metadata={
            "help": "the gates of tasks in the checkpoint with which a run of other tasks begins: one for all, or the "
            "mean of several, such as mnli,rte (default: a task that the checkpoint knows keeps its own, another one "
            "begins at random)"
        },
    )


@dataclass
class MTSwitchConfig(MTTaGConfig):
    """MT-Switch's: one gate for all tasks."""

    expert_gates: str = field(default="switch", metadata={"help": "gate of the experts: task, switch or base"})
