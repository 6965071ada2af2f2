"""The options of `--task glue` and `--task text_to_text`, and what both have."""

from dataclasses import dataclass
from typing import Optional

from omegaconf import II

from fairseq_mtmoe.tasks._multitask.config import MultitaskConfig, SamplingConfig, option


@dataclass
class BenchmarkConfig(MultitaskConfig):
    """Options of both, and of other parts of fairseq's configuration."""

    max_tokens_valid: Optional[int] = option(II("dataset.max_tokens_valid"), None)
    best_checkpoint_metric: str = option(II("checkpoint.best_checkpoint_metric"), None)
    path: Optional[str] = option(II("common_eval.path"), None)
    results_path: Optional[str] = option(II("common_eval.results_path"), None)

    data: Optional[str] = option(None, "data directory: the benchmarks' files as they are unpacked")
    task_table: Optional[str] = option(
        None,
        "comma-separated files of tables that add or replace tasks; docs/reference/task_table.md explains the fields",
    )
    token_cache: Optional[str] = option(None, "folder of tokenized data (default: mtmoe-cache in the data directory)")


@dataclass
class GlueConfig(BenchmarkConfig, SamplingConfig):
    """Options of language understanding."""

    glue_tasks: str = option(
        "all", "comma-separated tasks of the table; all (GLUE without WNLI), glue, superglue or mrqa stand for several"
    )
    init_encoder: Optional[str] = option(None, "pretrained encoder: a file of `mtmoe import-hf`")
    max_positions: int = option(
        128,
        "most tokens of a sequence, of which a ranking has one per candidate; longer ones are truncated as BERT does",
    )
    train_share: Optional[str] = option(
        None,
        "share of the examples to train on, of each label alike: one for all tasks, tasks' own, or both, such as "
        "0.1,qqp=0.01 (default: all); validation stays whole",
    )
    train_share_seed: int = option(
        1, "names the draw of --train-share, whatever --seed is; a smaller share is a part of a larger one"
    )


@dataclass
class TextToTextConfig(BenchmarkConfig):
    """Options of a task in text."""

    source_task: Optional[str] = option(None, "the task of the table that is trained, as a source for later ones")
    target_task: Optional[str] = option(None, "the task of the table that is trained, which may borrow from sources")
    init_model: Optional[str] = option(
        None, "pretrained T5: a file of `mtmoe import-hf`; --arch t5 and pemt_t5 take its sizes"
    )
    max_source_positions: int = option(512, "most tokens of what is read; longer texts lose their ends")
    max_target_positions: int = option(128, "most tokens of what is written")
    train_examples: Optional[int] = option(
        None,
        "number of training examples, each label with its share, at least one (default: all); validation stays whole",
    )
    train_examples_seed: int = option(
        1, "names the draw of --train-examples, whatever --seed is; fewer examples are a part of more"
    )
