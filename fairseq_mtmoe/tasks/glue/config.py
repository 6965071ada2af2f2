"""The options of `--task glue`."""

from dataclasses import dataclass
from typing import Optional

from fairseq_mtmoe.tasks._benchmark.config import BenchmarkConfig, option


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
