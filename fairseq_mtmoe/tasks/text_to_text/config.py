"""The options of `--task text_to_text`."""

from dataclasses import dataclass
from typing import Optional

from fairseq_mtmoe.tasks._benchmark.config import BenchmarkConfig, option


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
        "train on so many examples, each label with its share and at least one (default: all); validation stays whole",
    )
    train_examples_seed: int = option(
        1, "names the draw of --train-examples, whatever --seed is; fewer examples are a part of more"
    )
    virtual_epoch_size: Optional[int] = option(None, "examples in an epoch (default: a pass over the data)")
