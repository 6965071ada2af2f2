"""Which experts a block gets."""

from dataclasses import dataclass, field
from typing import Optional

from fairseq_mtmoe.moe import BaseRouting


@dataclass(frozen=True)
class SlotPlan:
    """What one block's experts are: the gate's kind, their number, how they are combined, the number of tasks.

    `base` is how BASE gates route. `timeout` is in seconds, for the exchange between processes; `shuffles_tokens` mixes
    theirs before BASE assigns.
    """

    gate: str
    num_experts: int
    combine: str
    num_tasks: int
    starts_dense: bool
    base: BaseRouting = field(default_factory=BaseRouting)
    shuffles_tokens: bool = True
    timeout: Optional[float] = None
