"""The options of `--task glue` and `--task text_to_text`."""

from dataclasses import dataclass
from typing import Optional

from omegaconf import II

from fairseq_mtmoe.core.options import option
from fairseq_mtmoe.core.typed import Rule, at_least
from fairseq_mtmoe.multitask.config import MultitaskConfig, SamplingConfig

_TOKENS = Rule("at least 2, a token and an end", lambda value: value >= 2)


@dataclass
class BenchmarkConfig(MultitaskConfig):
    """Options of both tasks, and options that they read from fairseq's configuration."""

    max_tokens_valid: Optional[int] = option(II("dataset.max_tokens_valid"), None)
    path: Optional[str] = option(II("common_eval.path"), None)
    results_path: Optional[str] = option(II("common_eval.results_path"), None)

    data: Optional[str] = option(None, "data directory: the unpacked files of the benchmarks")
    task_table: Optional[str] = option(
        None,
        "comma-separated task tables, files that add or replace tasks; see "
        "docs/reference/task_table.md",
    )
    token_cache: Optional[str] = option(
        None, "folder for tokenized data (default: mtmoe-cache in the data directory)"
    )


@dataclass
class GlueConfig(BenchmarkConfig, SamplingConfig):
    """Options of language understanding."""

    glue_tasks: str = option(
        "all",
        "comma-separated tasks of the table, or groups of tasks: all (GLUE without WNLI), glue, "
        "superglue, mrqa, mtl24",
    )
    init_encoder: Optional[str] = option(
        None, "pretrained encoder: a file written by `mtmoe import-hf`"
    )
    max_positions: int = option(
        128,
        "maximum number of tokens in a sequence (a ranking has one sequence per candidate); longer "
        "ones are truncated as in BERT",
    )
    train_share: Optional[str] = option(
        None,
        "fraction of the examples to train on, the same of each label: one for all tasks, one per "
        "task, or both, such as 0.1,qqp=0.01 (default: all); validation uses all examples",
    )
    train_share_seed: int = option(
        1,
        "seed of --train-share, independent of --seed; a smaller share is a subset of a larger one",
    )


@dataclass
class TextToTextConfig(BenchmarkConfig):
    """Options of a text-to-text task."""

    source_task: Optional[str] = option(
        None, "task of the table to train as a source, from which later tasks transfer"
    )
    target_task: Optional[str] = option(
        None, "task of the table to train, with or without transfer from source tasks"
    )
    init_model: Optional[str] = option(
        None,
        "pretrained T5: a file written by `mtmoe import-hf`; --arch t5 and pemt_t5 take its sizes",
    )
    max_source_positions: int = option(
        512, "maximum number of input tokens; longer texts are truncated at their end", _TOKENS
    )
    max_target_positions: int = option(128, "maximum number of output tokens", _TOKENS)
    train_examples: Optional[int] = option(
        None,
        "number of training examples, in each label's proportion and at least one per label "
        "(default: all); validation uses all examples",
        at_least(1),
    )
    train_examples_seed: int = option(
        1,
        "seed of --train-examples, independent of --seed; a smaller number is a subset of a larger "
        "one",
    )
