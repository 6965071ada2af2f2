"""Options of multi-task tasks: their own, and those that they read from fairseq."""

from dataclasses import dataclass, field
from typing import List, Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import II

from fairseq_mtmoe.core.options import option


@dataclass
class MultitaskConfig(FairseqDataclass):
    """The size of an epoch, and fairseq's options that a task reads.

    An option without help is not added to the task's own options.
    """

    seed: int = option(II("common.seed"), None)
    train_subset: str = option(II("dataset.train_subset"), None)
    max_epoch: int = option(II("optimization.max_epoch"), None)
    update_freq: List[int] = field(default=II("optimization.update_freq"))
    save_dir: str = option(II("checkpoint.save_dir"), None)
    restore_file: str = option(II("checkpoint.restore_file"), None)
    checkpoint_suffix: str = option(II("checkpoint.checkpoint_suffix"), None)
    continue_once: Optional[str] = option(II("checkpoint.continue_once"), None)
    finetune_from_model: Optional[str] = option(II("checkpoint.finetune_from_model"), None)

    virtual_epoch_size: Optional[int] = option(
        None,
        "number of examples (sentences) in an epoch, at most one pass over the data "
        "(default: one pass)",
    )


@dataclass
class SamplingConfig(MultitaskConfig):
    """How tasks share an epoch."""

    sampling_method: str = option(
        "concat",
        "how tasks share an epoch: concat (natural, by size), temperature, uniform, RoundRobin, "
        "uniform-then-natural, or uncertainty (draw equally many candidates of each, and train on "
        "those that the model is most uncertain of)",
    )
    sampling_temperature: float = option(
        1.5, "T of --sampling-method temperature, and where heating starts"
    )
    heating_coefficient: float = option(
        0.0,
        "k of temperature heating: epoch e, counted from 0, has the temperature T·sqrt(1 + k·e/C)",
    )
    heating_epochs: Optional[int] = option(
        None,
        "C of temperature heating, its duration in epochs (default: --max-epoch when the run "
        "begins; raising --max-epoch later changes nothing)",
    )
    heating_updates: Optional[int] = option(
        None,
        "C of temperature heating in updates instead of epochs: an epoch has the temperature of "
        "its first update; an epoch of more than C/20 updates is drawn in parts of C/20 updates, "
        "each with the temperature of its first update",
    )
    natural_from_epoch: Optional[int] = option(
        None,
        "first epoch (or virtual epoch) that uniform-then-natural samples by size; earlier ones "
        "are uniform",
    )
