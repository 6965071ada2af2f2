"""Options of models with experts, and of their training in several processes."""

from dataclasses import dataclass
from typing import Optional

from fairseq_mtmoe.moe.assignment.running_prices import MEMORY
from fairseq_mtmoe.options import TaskOptions, option


@dataclass
class ExpertOptions(TaskOptions):
    """Mixed into the configuration of every model with experts; `slots/` reads it."""

    num_experts: int = option(16, "experts per expert layer, independent of the number of processes")
    expert_gates: str = option(
        "base",
        "gate of the expert layers: base, task, switch or fixed (one expert for each task), or a repeating "
        "pattern such as base,task",
    )
    expert_interval: int = option(2, "every how many blocks, of encoder and decoder, one has experts")
    expert_combine: str = option(
        "preserving",
        "how an expert's output joins the block: 'paper' scales it by the gate's value; 'preserving' by "
        "one plus a learned share of it that starts at zero: sparsifying a dense model leaves its output as it was",
    )
    dense_updates: int = option(
        0, "train dense for so many updates, then make each expert a copy of its block's feed-forward"
    )
    gate_lr_factor: Optional[float] = option(
        None,
        "learning rate of the gates' weights and of the share that 'preserving' learns, as a multiple of "
        "--lr; 0 keeps them (default: 30 in mt_tag and mt_switch, 1 in other models)",
    )
    expert_dropout: Optional[float] = option(
        None,
        "dropout of inner values in experts, each of which sees few tokens (Switch Transformer's expert "
        "dropout; default: that of other feed-forwards)",
    )
    shared_expert_dim: int = option(
        0,
        "so many inner units of each feed-forward with experts serve all tokens, and each expert has the "
        "rest: a token costs the same, and copies leave the output as it was (DeepSeekMoE's shared expert)",
    )
    expert_reinit_ratio: float = option(
        0.0,
        "share of the inner units of each copy of a feed-forward that is drawn anew, other ones in each, "
        "so that copies specialise (Drop-Upcycling; its authors take 0.5)",
    )
    base_evaluation: str = option(
        "prices",
        "how BASE layers route in evaluation: 'prices' takes the expert with the highest score less its "
        "price, the running mean of those at which training's experts were equally in demand; 'greedy', as "
        "BASE layers were published, that with the highest score; 'balanced' gives experts equal shares of each "
        "batch of a validation, as training does, while translations go by prices",
    )
    base_training: str = option(
        "balanced",
        "how BASE layers route in training: 'balanced', as published, gives experts equal shares of each "
        "batch; 'prices' routes by running prices as in evaluation, with shares about equal",
    )
    price_memory: float = option(
        MEMORY, "how much of the running mean of prices is left after an update, from 0 to below 1"
    )


@dataclass
class RunOptions:
    """Mixed into the configuration of every model with experts; `training/` and the expert layers read it."""

    no_token_shuffle: bool = option(
        False,
        "route each process's tokens as they come, instead of first shuffling them over the processes as "
        "BASE does in training",
    )
    log_expert_comm: bool = option(
        False, "log the time and the bytes that each expert layer spends in exchanging tokens"
    )
    max_nonfinite: int = option(
        10,
        "skip updates whose loss or gradients are not finite, and stop after so many in a row; 0: stop at "
        "the first, and log which layers' outputs are not finite",
    )
    distributed_timeout: int = option(
        600,
        "seconds that a process waits for another that does not start or answer, before the run ends; more "
        "than the slowest save takes",
    )
