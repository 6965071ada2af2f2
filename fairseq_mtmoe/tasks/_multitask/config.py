"""Options of tasks of several tasks: how these share an epoch, and what they read of fairseq's other options."""

from dataclasses import dataclass, field
from typing import Any, List, Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import II


def option(default: Any, help: Optional[str], **more: Any) -> Any:
    """A field with its help, and perhaps fairseq's `argparse_alias` or `argparse_const`."""
    return field(default=default, metadata={"help": help, **more})


@dataclass
class MultitaskConfig(FairseqDataclass):
    """The size of an epoch; and options of other parts, which without help are no options of the task's own."""

    seed: int = option(II("common.seed"), None)
    train_subset: str = option(II("dataset.train_subset"), None)
    max_epoch: int = option(II("optimization.max_epoch"), None)
    update_freq: List[int] = field(default=II("optimization.update_freq"))
    save_dir: str = option(II("checkpoint.save_dir"), None)
    restore_file: str = option(II("checkpoint.restore_file"), None)
    continue_once: Optional[str] = option(II("checkpoint.continue_once"), None)
    finetune_from_model: Optional[str] = option(II("checkpoint.finetune_from_model"), None)

    virtual_epoch_size: Optional[int] = option(
        None, "examples (sentences) in an epoch, and no more than a pass over the data (default: a pass)"
    )


@dataclass
class SamplingConfig(MultitaskConfig):
    """How tasks share an epoch."""

    sampling_method: str = option(
        "concat",
        "how tasks, or translation directions, share an epoch: concat (natural, by size), temperature, uniform, "
        "RoundRobin, uniform-then-natural, or uncertainty: of as many candidates of each those train that the model is "
        "most uncertain of",
    )
    sampling_temperature: float = option(1.5, "temperature of --sampling-method temperature; where heating starts")
    heating_coefficient: float = option(
        0.0, "k of temperature heating: the temperature of epoch e is T·sqrt(1 + k·e/C), with e from 0"
    )
    heating_epochs: Optional[int] = option(
        None, "C of temperature heating (default: --max-epoch when the run begins; a longer one changes nothing later)"
    )
    heating_updates: Optional[int] = option(
        None,
        "C in updates, instead of epochs: an epoch has the temperature of its first update; one longer than C/20 is "
        "drawn in parts of C/20 updates, each with its own temperature",
    )
    natural_from_epoch: Optional[int] = option(
        None, "the first epoch, or virtual epoch, that uniform-then-natural draws by size; those before are uniform"
    )
