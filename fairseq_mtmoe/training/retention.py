"""Which checkpoints are due at a moment of a run, and which are then one too many, by fairseq's options and names.

`--save-interval`, `--save-interval-updates`, `--no-epoch-checkpoints`, `--no-last-checkpoints` and the best one say
which are written; `--keep-interval-updates`, `--keep-last-epochs` and `--keep-best-checkpoints` which stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from fairseq import checkpoint_utils
from fairseq.data import data_utils
from fairseq.file_io import PathManager


@dataclass(frozen=True)
class Moment:
    """When a run saves.

    Args:
        epoch: from 1.
        updates: how many were made.
        end_of_epoch: whether the epoch is over.
        val_loss: what the validation before it came to, if there was one.
    """

    epoch: int
    updates: int
    end_of_epoch: bool
    val_loss: float | None


def better(cfg: Any, one: float, other: float) -> float:
    """The better of two validation losses, by `--maximize-best-checkpoint-metric`."""
    return max(one, other) if cfg.maximize_best_checkpoint_metric else min(one, other)


def files_to_save(cfg: Any, moment: Moment, suffix: str, best: float | None) -> list[str]:
    """Return the paths of the checkpoints to write now.

    Args:
        cfg: fairseq's options of checkpoints.
        moment: now.
        suffix: what stands before the `.pt` of each.
        best: the best validation loss so far, the moment's included.
    """
    names: list[str] = []
    if moment.end_of_epoch and not cfg.no_epoch_checkpoints and moment.epoch % cfg.save_interval == 0:
        names.append(f"checkpoint{moment.epoch}")
    interval = cfg.save_interval_updates
    if not moment.end_of_epoch and interval > 0 and moment.updates % interval == 0:
        names.append(f"checkpoint_{moment.epoch}_{moment.updates}")
    if moment.val_loss is not None:
        if moment.val_loss == best:
            names.append("checkpoint_best")
        names += _among_the_best(cfg, moment, moment.val_loss, suffix, best)
    if not cfg.no_last_checkpoints:
        names.append("checkpoint_last")
    return [os.path.join(cfg.save_dir, f"{name}{suffix}.pt") for name in names]


def _among_the_best(cfg: Any, moment: Moment, val_loss: float, suffix: str, best: float | None) -> list[str]:
    """The name with the loss in it, where this is no worse than the worst of those that are kept."""
    if cfg.keep_best_checkpoints <= 0:
        return []
    kept = [float(path.rsplit("_")[-1].removesuffix(f"{suffix}.pt")) for path in _of_the_best(cfg, suffix)]
    worst = kept[-1] if kept else best
    if worst is not None and better(cfg, val_loss, worst) != val_loss:
        return []
    with data_utils.numpy_seed(moment.epoch, moment.updates, val_loss):
        digit = np.random.randint(0, cfg.keep_best_checkpoints)  # so that equal losses have files of their own
    return [f"checkpoint.best_{cfg.best_checkpoint_metric}_{val_loss:.3f}{digit}"]


def remove_old(cfg: Any, moment: Moment, suffix: str) -> None:
    """Remove what is one too many, now that what was due is written."""
    for path in _too_many(cfg, moment, suffix):
        if os.path.lexists(path):
            os.remove(path)
        elif PathManager.exists(path):
            PathManager.rm(path)


def _too_many(cfg: Any, moment: Moment, suffix: str) -> Iterator[str]:
    if not moment.end_of_epoch and cfg.keep_interval_updates > 0:
        found = checkpoint_utils.checkpoint_paths(cfg.save_dir, rf"checkpoint_\d+_(\d+){suffix}\.pt", keep_match=True)
        pattern = cfg.keep_interval_updates_pattern
        yield from [path for path, updates in found if pattern == -1 or updates % pattern][cfg.keep_interval_updates :]
    if cfg.keep_last_epochs > 0:
        yield from checkpoint_utils.checkpoint_paths(cfg.save_dir, rf"checkpoint(\d+){suffix}\.pt")[
            cfg.keep_last_epochs :
        ]
    if cfg.keep_best_checkpoints > 0:
        yield from _of_the_best(cfg, suffix)[cfg.keep_best_checkpoints :]


def _of_the_best(cfg: Any, suffix: str) -> list[str]:
    """Those with their loss in their name, the best first."""
    pattern = rf"checkpoint\.best_{cfg.best_checkpoint_metric}_(\d+\.?\d*){suffix}\.pt"
    paths: list[str] = checkpoint_utils.checkpoint_paths(cfg.save_dir, pattern)
    return paths if cfg.maximize_best_checkpoint_metric else paths[::-1]
