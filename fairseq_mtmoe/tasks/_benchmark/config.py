"""Options that all tasks of the table of tasks have."""

from dataclasses import dataclass, field
from typing import Any, List, Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import II


def option(default: Any, help: Optional[str]) -> Any:
    """A field of the configuration with its help."""
    return field(default=default, metadata={"help": help})


@dataclass
class BenchmarkConfig(FairseqDataclass):
    """Options of other parts of fairseq's configuration. Without help they are no options of the task's own."""

    seed: int = option(II("common.seed"), None)
    train_subset: str = option(II("dataset.train_subset"), None)
    max_tokens_valid: Optional[int] = option(II("dataset.max_tokens_valid"), None)
    max_epoch: int = option(II("optimization.max_epoch"), None)
    update_freq: List[int] = field(default=II("optimization.update_freq"))
    save_dir: str = option(II("checkpoint.save_dir"), None)
    best_checkpoint_metric: str = option(II("checkpoint.best_checkpoint_metric"), None)
    restore_file: str = option(II("checkpoint.restore_file"), None)
    continue_once: Optional[str] = option(II("checkpoint.continue_once"), None)
    finetune_from_model: Optional[str] = option(II("checkpoint.finetune_from_model"), None)
    path: Optional[str] = option(II("common_eval.path"), None)
    results_path: Optional[str] = option(II("common_eval.results_path"), None)
