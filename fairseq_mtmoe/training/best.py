"""The best validation of a run, and the number of worse ones (`--patience`).

fairseq keeps both as attributes of two of its functions, and saves only the first. They are valid
for one metric, valid subset and set of tasks: a run that changes these begins both anew.
"""

import logging
from typing import Any

from fairseq import checkpoint_utils
from omegaconf import OmegaConf

from fairseq_mtmoe.checkpoints.key_maps import BEST, BEST_MEASURE, PATIENCE, without_best
from fairseq_mtmoe.training import screen, stopping

logger = logging.getLogger(__name__)

_KEPT = ("best", "num_runs")  # attributes of fairseq's functions


def saved_state(trainer: Any) -> dict[str, Any]:
    """Return what a checkpoint needs in addition to fairseq's best value."""
    counted = stopping.early_stopping()
    state = {BEST_MEASURE: _measure(trainer)}
    if "num_runs" in counted:
        state[PATIENCE] = {name: counted[name] for name in _KEPT}
    return state


def forget() -> None:
    """Forget an earlier run in this process, as with hydra's `--multirun`."""
    for attributes in (vars(checkpoint_utils.save_checkpoint), stopping.early_stopping()):
        for name in _KEPT:
            attributes.pop(name, None)


def restore(trainer: Any, extra_state: dict[str, Any], options: Any) -> dict[str, Any]:
    """Restore a checkpoint's count for `--patience`.

    Return the extra state, from which fairseq restores the rest. It lacks the best value if that
    was measured otherwise.

    options: the checkpoint's configuration. Checkpoints of 0.2 have their measure only there.
    """
    now = _measure(trainer)
    before = extra_state.get(BEST_MEASURE) or {**now, **_measure_in(options)}
    changed = [name for name in now if before.get(name) != now[name]]
    if not changed:
        stopping.early_stopping().update(extra_state.get(PATIENCE) or {})
        return extra_state
    plateau = plateau_of(trainer)
    if plateau is not None:
        plateau._reset()
    if extra_state.get(BEST) is not None:
        names = ", ".join(changed)
        sentence = (
            f"the best validation begins anew, since the checkpoint has another value of {names}"
        )
        logger.info(sentence, extra=screen.FOR_SCREEN)
    return without_best(extra_state)


def plateau_of(trainer: Any) -> Any:
    """Return torch's scheduler of `--lr-scheduler reduce_lr_on_plateau`, or None."""
    return getattr(trainer.lr_scheduler, "lr_scheduler", None)


def ended_by_patience(trainer: Any) -> str | None:
    """Return why the run has ended, if `--patience` ended it."""
    patience = trainer.cfg.checkpoint.patience
    worse = stopping.early_stopping().get("num_runs", 0)
    if 0 < patience <= worse:
        return f"its last {worse} validations were not better (--patience {patience})"
    return None


def _measure(trainer: Any) -> dict[str, Any]:
    """Return the measure of this run's validations."""
    names = getattr(trainer.task, "lang_pairs", None) or getattr(trainer.task, "task_names", [])
    return {**_measure_in(trainer.cfg), "the tasks": sorted(names)}


def _measure_in(cfg: Any) -> dict[str, Any]:
    """Return the measure that a configuration has, without the tasks."""
    if not OmegaConf.is_config(cfg):
        return {}
    options = cfg.checkpoint
    return {
        "--best-checkpoint-metric": options.best_checkpoint_metric,
        "--maximize-best-checkpoint-metric": options.maximize_best_checkpoint_metric,
        "--valid-subset": cfg.dataset.valid_subset.partition(",")[0],
    }
