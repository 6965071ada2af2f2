"""Options of models with experts, and of their training in several processes."""

from dataclasses import dataclass
from typing import Optional

from fairseq_mtmoe.core.options import TaskOptions, option
from fairseq_mtmoe.core.typed import Rule, at_least, between, one_of
from fairseq_mtmoe.moe.assignment.running_prices import MEMORY
from fairseq_mtmoe.moe.gates import EVALUATIONS
from fairseq_mtmoe.moe.layer import COMBINES

EXPERT_GATES = (
    "gate of the expert layers: base (balanced assignment), task (a gate for each task), switch "
    "(one gate for all tasks) or fixed (one expert for each task), or a repeating pattern such as "
    "base,task"
)


@dataclass
class ExpertOptions(TaskOptions):
    """Options of every model with experts; `slots/` reads them."""

    num_experts: int = option(
        16,
        "number of experts per expert layer, independent of the number of processes",
        at_least(1),
    )
    expert_gates: str = option("base", EXPERT_GATES)
    expert_interval: int = option(
        2, "put experts into every Nth block of encoder and decoder", at_least(1)
    )
    expert_combine: str = option(
        "preserving",
        "scale of an expert's output: 'paper' uses the gate value; 'preserving' starts at 1 and "
        "learns a blend with the gate value, so that sparsifying a dense model does not change "
        "its output",
        one_of(COMBINES),
    )
    dense_updates: int = option(
        0,
        "train dense for this many updates, then copy the feed-forward layer and its optimizer "
        "state into every expert (0: sparse from the start)",
        at_least(0),
    )
    gate_lr_factor: Optional[float] = option(
        None,
        "learning rate of gate weights and of the blend of --expert-combine preserving, as a "
        "multiple of --lr; 0 freezes them (default: 30 in mt_tag and mt_switch, 1 in other "
        "models)",
        at_least(0),
    )
    expert_dropout: Optional[float] = option(
        None,
        "dropout of the experts' inner activations, because each expert sees few tokens (Switch "
        "Transformer's expert dropout; default: as in dense feed-forward layers)",
        between(0, 1),
    )
    base_evaluation: str = option(
        "prices",
        "how BASE layers route in evaluation: 'prices' by score minus the running dual price of "
        "training; 'greedy', as published, by score; 'balanced' assigns equally many tokens to "
        "each expert in validation batches, as in training, and translates and predicts by prices",
        one_of(EVALUATIONS),
    )
    price_memory: float = option(
        MEMORY,
        "decay per update of the running mean of dual prices that --base-evaluation prices uses, "
        "from 0 to below 1",
        Rule("a number from 0 to below 1", lambda value: 0 <= value < 1),
    )


@dataclass
class RunOptions:
    """Options of a run in several processes; `training/` and expert layers read them."""

    no_token_shuffle: bool = option(
        False,
        "route each process's own tokens, instead of shuffling tokens over all processes first "
        "as BASE does in training",
    )
    log_expert_comm: bool = option(
        False, "log the seconds and megabytes of each expert layer's all-to-all communication"
    )
    max_nonfinite: int = option(
        10,
        "skip updates whose loss or gradients are not finite, and stop after this number in a "
        "row; 0: stop at the first, and log the layers whose outputs are not finite",
        at_least(0),
    )
    distributed_timeout: int = option(
        600,
        "seconds to wait for a process that does not start or answer before the run ends; must "
        "exceed the duration of the slowest save",
        at_least(1),
    )
