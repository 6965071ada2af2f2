"""The options of `--task glue` and `--task text_to_text`, and what both have."""

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


@dataclass
class GlueConfig(BenchmarkConfig):
    """Options, in the order of `--help`."""

    data: Optional[str] = option(None, "data directory: the benchmarks' files as they are unpacked")
    glue_tasks: str = option(
        "all", "comma-separated tasks of the table; all (GLUE without WNLI), glue, superglue or mrqa stand for several"
    )
    task_table: Optional[str] = option(
        None, "comma-separated files of tables that add tasks or replace them; docs/task_table.md explains their fields"
    )
    init_encoder: Optional[str] = option(None, "pretrained encoder: a file of `mtmoe import-hf`")
    max_positions: int = option(
        128,
        "most tokens of a sequence, of which a ranking has one per candidate; longer ones are truncated as BERT does",
    )
    token_cache: Optional[str] = option(None, "folder of tokenized data (default: mtmoe-cache in the data directory)")
    train_share: Optional[str] = option(
        None,
        "share of the examples to train on, of each label alike: one for all tasks, tasks' own, or both, such as "
        "0.1,qqp=0.01 (default: all); validation stays whole",
    )
    train_share_seed: int = option(
        1, "names the draw of --train-share, whatever --seed is; a smaller share is a part of a larger one"
    )

    sampling_method: str = option(
        "concat",
        "how tasks share an epoch: concat (natural, by size), uniform, temperature or uniform-then-natural; or "
        "uncertainty: of as many candidates of each task those train that the model is most uncertain of",
    )
    sampling_temperature: float = option(1.5, "temperature of --sampling-method temperature; where heating starts")
    heating_coefficient: float = option(
        0.0, "k of temperature heating: the temperature of epoch e is T·sqrt(1 + k·e/C), with e from 0"
    )
    heating_epochs: Optional[int] = option(None, "C of temperature heating (default: --max-epoch)")
    heating_updates: Optional[int] = option(
        None,
        "C in updates, instead: an epoch has the temperature of its first update; one longer than C/20 is drawn in "
        "parts of C/20 updates, each with its own temperature",
    )
    natural_from_epoch: Optional[int] = option(
        None, "the first epoch, or virtual epoch, that uniform-then-natural draws by size; those before are uniform"
    )
    virtual_epoch_size: Optional[int] = option(None, "examples in an epoch (default: a pass over the data)")


@dataclass
class TextToTextConfig(BenchmarkConfig):
    """Options, in the order of `--help`."""

    data: Optional[str] = option(None, "data directory: the benchmarks' files as they are unpacked")
    source_task: Optional[str] = option(None, "the task of the table that is trained, as a source for later ones")
    target_task: Optional[str] = option(None, "the task of the table that is trained, which may borrow from sources")
    task_table: Optional[str] = option(
        None, "comma-separated files of tables that add tasks or replace them; docs/task_table.md explains their fields"
    )
    init_model: Optional[str] = option(
        None, "pretrained T5: a file of `mtmoe import-hf`; --arch t5 and pemt_t5 take its sizes"
    )
    max_source_positions: int = option(512, "most tokens of what is read; longer texts lose their ends")
    max_target_positions: int = option(128, "most tokens of what is written")
    token_cache: Optional[str] = option(None, "folder of tokenized data (default: mtmoe-cache in the data directory)")
    train_examples: Optional[int] = option(
        None,
        "number of training examples, each label with its share, at least one (default: all); validation stays whole",
    )
    train_examples_seed: int = option(
        1, "names the draw of --train-examples, whatever --seed is; fewer examples are a part of more"
    )
    virtual_epoch_size: Optional[int] = option(None, "examples in an epoch (default: a pass over the data)")
