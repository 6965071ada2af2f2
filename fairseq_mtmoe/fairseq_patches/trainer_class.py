"""fairseq's commands train with `SparseTrainer`: they name fairseq's class, which `--user-dir` cannot change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairseq.trainer import Trainer

from fairseq_mtmoe.fairseq_patches.patch import apply_to_commands
from fairseq_mtmoe.training.trainer import SparseTrainer
from fairseq_mtmoe.training.unsupported import refuse_what_cannot_work


def choosing_ours(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Trainer.__new__`, which makes a `SparseTrainer` where fairseq's own trainer was asked for.

    By then the training command is loaded, however it was started.
    """

    def __new__(cls: type[Trainer], cfg: Any, task: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        apply_to_commands()
        if cls is Trainer:
            cls = SparseTrainer
        elif not issubclass(cls, SparseTrainer) and hasattr(cfg, "distributed_training"):
            refuse_what_cannot_work(cfg, model)  # fairseq's trainer of parallel models
        return object.__new__(cls)

    return __new__
