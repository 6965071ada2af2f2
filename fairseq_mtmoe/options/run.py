"""Options of a training run with experts in several processes. They stand with the model's, whose runs they are of."""

from dataclasses import dataclass, field


@dataclass
class RunOptions:
    """Mixed into the configuration of every model with experts; `training/` and the expert layers read it."""

    no_token_shuffle: bool = field(
        default=False,
        metadata={
            "help": "route each process's tokens as they come, instead of first shuffling them over the processes as "
            "BASE does in training"
        },
    )
    log_expert_comm: bool = field(
        default=False,
        metadata={"help": "log the time and the bytes that each expert layer spends in exchanging tokens"},
    )
    max_nonfinite: int = field(
        default=10,
        metadata={
            "help": "skip updates whose loss or gradients are not finite, and stop after so many in a row; 0: stop at "
            "the first, and log which layers' outputs are not finite"
        },
    )
    distributed_timeout: int = field(
        default=600,
        metadata={
            "help": "seconds that a process waits for another that does not start or answer, before the run ends; more "
            "than the slowest save takes"
        },
    )
