"""Resuming: checks of the checkpoint, each rank's part, and the epoch position.

fairseq trains from scratch if the file is missing, and fails with an assertion if criterion or
optimizer differ. It saves the number of batches that one process has seen in an epoch;
`SharedEpochIterator` counts those of all, also of fairseq's tasks. Older positions are converted
for another number of processes. Tasks of fairseq also draw their batches once, for the epoch in
which the process starts. A resumed run must draw them for the same epoch.
"""

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from fairseq.data.iterators import EpochBatchIterator
from fairseq.file_io import PathManager
from fairseq.optim import OPTIMIZER_REGISTRY

from fairseq_mtmoe.checkpoints import assemble, loading, mismatch
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile, peek
from fairseq_mtmoe.checkpoints.head_labels import match_labels
from fairseq_mtmoe.checkpoints.optimizer_state import Parameters, trained_parameters
from fairseq_mtmoe.checkpoints.rebuild import plain, sparsify_like
from fairseq_mtmoe.checkpoints.sharding import is_shared_part
from fairseq_mtmoe.core.errors import UserError, flag
from fairseq_mtmoe.core.files import regular_file
from fairseq_mtmoe.core.protocols import TrainingTask, training_model, training_task
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.slots import expert_layers, expert_slots
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.training import best, screen
from fairseq_mtmoe.training.epochs import LIMITS, Limits, SharedEpochIterator
from fairseq_mtmoe.training.option_check import is_flat, with_option
from fairseq_mtmoe.training.steps import unwrapped_optimizer

logger = logging.getLogger(__name__)

SEEN = "iterations_in_epoch"
PROCESSES = "num_processes"
DRAWN = "drawn_in_epoch"
EXACT = "batches_in_epoch"  # in the state of an iterator that itself needs no conversion
PLATEAU = "plateau"  # state of `--lr-scheduler reduce_lr_on_plateau` that fairseq does not save
NO_MOMENTS = "the checkpoint has no optimizer's moments: they begin at zero, and all else goes on"
LAST = "checkpoint_last.pt"  # default of `--restore-file`: this file in `--save-dir`


def expect_checkpoint_file(cfg: Any, suffix: str) -> None:
    """Raise a `UserError` if the checkpoint to continue from is missing or no file."""
    path, option = checkpoint_and_option(cfg, suffix) or ("", "")
    if not path:
        return
    if not PathManager.path_requires_pathmanager(path):
        regular_file(path, f"a checkpoint to continue from (`{option}`)")
    elif not PathManager.isfile(path):
        raise UserError(
            f"`{path}` does not exist; it must be a checkpoint to continue from (`{option}`)."
        )


def checkpoint_and_option(cfg: Any, suffix: str) -> tuple[str, str] | None:
    """Return the checkpoint that fairseq will load, and the option that names it."""
    if cfg.restore_file != LAST:
        return cfg.restore_file.replace(".pt", f"{suffix}.pt"), "--restore-file"
    last = os.path.join(cfg.save_dir, LAST.replace(".pt", f"{suffix}.pt"))
    if os.path.lexists(last) or PathManager.exists(last):
        return last, "--save-dir"
    for name in ("continue_once", "finetune_from_model"):
        path = getattr(cfg, name, None)
        if path is not None:
            return path, flag(name)
    return None


@contextmanager
def reading_checkpoint(trainer: Any, path: str, goes_on: bool) -> Iterator[loading.LoadContext]:
    """Let each rank read a checkpoint itself; with experts, only its own part.

    fairseq would broadcast rank 0's state as a pickle with classes of its options, which safe
    loading refuses. A run that `goes_on` with its moments must have the checkpoint's tasks,
    backbone, criterion and optimizer (UserError).
    """
    wishes: dict[str, Any] = {
        "loaded": [],
        "receive": functools.partial(_receive, trainer, goes_on),
    }
    several = trainer.data_parallel_world_size > 1
    if several and expert_slots(trainer.get_model()):
        wishes["read"] = functools.partial(_read_share, trainer)
    options = trainer.cfg.checkpoint
    on_all = with_option(
        options,
        "load_checkpoint_on_all_dp_ranks",
        several or options.load_checkpoint_on_all_dp_ranks,
    )
    try:
        model = trainer.get_model()
        with (
            loading.load_context(**wishes) as loads,
            on_all,
            mismatch.explained(model, trainer.cfg.model, loads.loaded),
        ):
            yield loads
        if goes_on and loads.loaded:
            _expect_same_steps(trainer, path, loads.loaded[-1][1])
    except AssertionError:
        if loads.loaded:
            _expect_same_steps(trainer, path, loads.loaded[-1][1])
        raise
    except KeyError as error:
        if error.args != ("best",):  # which the state of `--lr-scheduler fixed` lacks
            raise
        raise UserError(
            f"`--lr-scheduler` must be fixed to continue from `{path}`, but is "
            f"{trainer.cfg.lr_scheduler._name} instead; `--reset-lr-scheduler` begins the "
            "schedule anew."
        ) from error
    except ValueError as error:
        # torch says this of a parameter group of another size.
        if "loaded state dict" not in str(error):
            raise
        raise UserError(
            f"`{path}` must have the optimizer's moments of the trained parameters, but has those "
            "of more or fewer; options such as `--share-all-embeddings`, `--freeze-layers`, "
            "`--conditional` and `--glue-tasks` decide which parameters are trained, "
            "`--reset-optimizer` continues without the moments, and `--finetune-from-model` "
            "starts a run of other tasks from the weights."
        ) from error


def _receive(trainer: Any, goes_on: bool, path: str, state: dict[str, Any]) -> None:
    """Hand a checkpoint to the task, and put its heads' outputs in the task's order."""
    task = training_task(trainer.task)
    task.take_up(path, state, goes_on)
    if task.head_labels:
        match_labels(path, state, task.head_labels, trained_shapes(trainer) if goes_on else ())


def sparsify_for(trainer: Any, path: str) -> None:
    """Give the model experts before it loads a checkpoint that has some."""
    model = unwrapped(trainer.get_model())
    if training_model(model).is_dense and PathManager.isfile(path):
        sparsify_like(model, peek(PathManager.get_local_path(path)) or {})


def _expect_same_steps(trainer: Any, path: str, state: Mapping[str, Any]) -> None:
    """Raise a `UserError` if another criterion or optimizer made a state's moments.

    In half precision fairseq compares only the wrappers of optimizers.
    """
    if state.get("last_optimizer_state") is None:
        return
    last = state["optimizer_history"][-1]
    chosen = plain((state.get("cfg") or {}).get("optimizer")).get("_name")
    inner = getattr(OPTIMIZER_REGISTRY.get(chosen), "__name__", None)
    for option, saved, current in (
        ("--criterion", last.get("criterion_name"), trainer.get_criterion()),
        ("--optimizer", last.get("optimizer_name"), trainer.optimizer),
        ("--optimizer", inner, unwrapped_optimizer(trainer.optimizer)),
    ):
        name = type(current).__name__
        if saved not in (None, name):
            raise UserError(
                f"`{option}` must have the class {saved} to continue from `{path}` with its "
                f"optimizer's moments, but has {name} instead; `--reset-optimizer` continues "
                "without them."
            )


# ---- each rank's part ----


def _read_share(trainer: Any, path: str) -> dict[str, Any]:
    """Return this rank's part of a checkpoint."""
    model = trainer.get_model()
    placement = placement_of(trainer)
    with CheckpointFile(path) as file:
        if placement is None or not (placement.is_sharded or is_shared_part(file.peek() or {})):
            return assemble.read_shared_part(file)
        try:
            return assemble.load_local(
                file, placement, trained_shapes(trainer), is_flat(trainer.cfg.common)
            )
        except UserError as error:
            state = file.load(mapped=True)
            refusal = mismatch.refusal_of(model, trainer.cfg.model, path, state, is_share=True)
            raise (refusal or error) from error


def placement_of(trainer: Any) -> ExpertPlacement | None:
    """Return the placement of this rank's experts; None while the model has none."""
    layers = expert_layers(trainer.get_model()).values()
    return next((layer.experts.placement for layer in layers), None)


def trained_shapes(trainer: Any) -> Parameters:
    """Return names and local shapes of trained parameters, in the optimizer's order."""
    modules = {"": trainer.get_model(), "criterion.": trainer.get_criterion()}
    return [
        (at + name, value.shape)
        for at, module in modules.items()
        for name, value in trained_parameters(module)
    ]


# ---- the state that fairseq does not restore ----


def restore_the_rest(
    trainer: Any, state: Mapping[str, Any], resets_schedule: bool, resets_meters: bool
) -> dict[str, Any]:
    """Restore state that fairseq does not; return the extra state for fairseq."""
    extra_state: dict[str, Any] = state["extra_state"]
    _restore_schedule(trainer, state, resets_schedule)
    task_state = extra_state.get(type(trainer.task).__name__)
    is_ours = isinstance(trainer.task, TrainingTask)
    # fairseq restores a task only with the position in the data, but the run's counts go on.
    if task_state and is_ours and trainer.cfg.checkpoint.reset_dataloader:
        trainer.task.set_checkpoint_dict(task_state)
    if not resets_meters:
        extra_state = best.restore(trainer, extra_state, state.get("cfg"))
    if best.plateau_of(trainer) is not None and not (resets_meters or resets_schedule):
        # fairseq steps the schedule by the validation at an epoch's end after its save.
        position = extra_state["train_iterator"]
        loss = extra_state.get("val_loss")
        if loss is not None and position[SEEN] == 0:
            trainer.lr_step(position["epoch"] - 1, loss)
    return extra_state


def _restore_schedule(trainer: Any, state: Mapping[str, Any], resets_schedule: bool) -> None:
    """Restore the schedule of a checkpoint without moments, and `--lr-patience`.

    fairseq restores updates and learning rate only together with the optimizer's moments.
    """
    has_moments = state.get("last_optimizer_state") is not None
    plateau = best.plateau_of(trainer)
    saved = {} if resets_schedule else state["extra_state"].get(PLATEAU, {})
    if not has_moments:
        last = state["optimizer_history"][-1]
        if not resets_schedule:
            trainer.lr_scheduler.load_state_dict(last["lr_scheduler_state"])
        trainer.set_num_updates(last["num_updates"])
        logger.info(NO_MOMENTS, extra=screen.FOR_SCREEN)
    if plateau is not None:
        plateau.num_bad_epochs = saved.get("num_bad_epochs", 0)
        if not has_moments:  # they hold this schedule's learning rate
            trainer.optimizer.set_lr(saved.get("lr", trainer.cfg.optimization.lr[0]))


def plateau_state(trainer: Any) -> dict[str, Any]:
    """Return the state of `--lr-scheduler reduce_lr_on_plateau` for a checkpoint."""
    plateau = best.plateau_of(trainer)
    if plateau is None:
        return {}
    return {PLATEAU: {"lr": trainer.get_lr(), "num_bad_epochs": plateau.num_bad_epochs}}


# ---- the position in an epoch ----


def resumable(trainer: Any, iterator: Any, make: Callable[..., Any]) -> Any:
    """Return an iterator that any processes and limits of a batch can resume.

    make: returns such an iterator by the trainer's options. Other kinds than fairseq's usual one
    stay as they are.
    """
    if type(iterator) is EpochBatchIterator and not iterator._supports_prefetch:
        iterator = SharedEpochIterator.continuing(iterator, trainer.cfg.optimization.update_freq)
    if not isinstance(iterator, SharedEpochIterator):
        return iterator
    options = trainer.cfg.dataset
    cached = getattr(trainer.task, "dataset_to_epoch_iter", {})
    is_cached = iterator.dataset in cached
    if is_cached:
        cached[iterator.dataset] = iterator

    def batches_by(limits: Limits) -> Any:
        dummy = trainer._dummy_batch
        with ExitStack() as changed:
            for name in LIMITS:
                changed.enter_context(with_option(options, name, limits[name]))
            changed.enter_context(with_option(options, "update_ordered_indices_seed", False))
            changed.enter_context(with_option(trainer.cfg.common, "seed", iterator.seed))
            cached.pop(iterator.dataset, None)  # which some of fairseq's tasks return in any case
            batches = make(load_dataset=False, disable_iterator_cache=True).frozen_batches
        if is_cached:
            cached[iterator.dataset] = iterator
        trainer.reset_dummy_batch(dummy)
        return batches

    iterator.limits = {name: options[name] for name in LIMITS}
    iterator.batches_by = batches_by
    return iterator


def starts_over(options: Any, reset_optimizer: bool) -> bool:
    """Return whether the run begins with the first epoch, by fairseq's rules."""
    fine_tunes = reset_optimizer and not options.reset_optimizer  # then fairseq resets everything
    return bool(options.reset_dataloader or fine_tunes)


def begin_no_epoch_if_ended(
    trainer: Any, extra_state: Mapping[str, Any] | None, goes_on: bool
) -> None:
    """Begin no epoch if the run has ended, and say so.

    fairseq would make another update.

    goes_on: whether epochs and training time of the checkpoint count.
    """
    options = trainer.cfg.optimization
    updates = trainer.get_num_updates()
    reason = best.ended_by_patience(trainer)
    if options.max_update and updates >= options.max_update:
        reason = f"it has made its {updates} updates (--max-update {options.max_update})"
    if extra_state is not None and goes_on:
        epochs = extra_state["train_iterator"]["epoch"] - 1
        if options.max_epoch and epochs >= options.max_epoch:
            reason = f"it has made its {options.max_epoch} epochs (--max-epoch {options.max_epoch})"
        hours = extra_state.get("previous_training_time", 0) / 3600
        if 0 < options.stop_time_hours < hours:
            reason = f"it has trained for its {options.stop_time_hours} hours (--stop-time-hours)"
    if reason is not None:
        logger.info(f"the run has ended: {reason}", extra=screen.FOR_SCREEN)
        options.max_epoch = -1


def with_epoch_position(
    extra_state: dict[str, Any], num_processes: int, drawn: int | None
) -> dict[str, Any]:
    """Return fairseq's extra state with the number of ranks and the epoch of the draw."""
    position = extra_state.get("train_iterator")
    if position is None or position.get("sampling") is not None:
        return extra_state
    return {**extra_state, "train_iterator": {**position, PROCESSES: num_processes, DRAWN: drawn}}


def drawn_in_epoch(extra_state: dict[str, Any] | None) -> int | None:
    """Return the epoch for which batches were drawn; None if unknown or any."""
    drawn: int | None = (extra_state or {}).get("train_iterator", {}).get(DRAWN)
    return drawn


def adapt_epoch_position(
    extra_state: dict[str, Any] | None, num_processes: int
) -> dict[str, Any] | None:
    """Return the extra state with the epoch position of another number of processes.

    A position between two batches is rounded down. fairseq's iterator of data that is prefetched
    reads it of any state.
    """
    position = (extra_state or {}).get("train_iterator", {})
    before = position.get(PROCESSES, num_processes)
    if extra_state is None or before == num_processes:
        return extra_state
    batches = position.get(EXACT, position[SEEN] * before)
    again = batches % num_processes
    if again and EXACT not in position:
        logger.warning(
            f"{again} batches of this epoch are seen twice: {before} processes have seen {batches}"
        )
    return {**extra_state, "train_iterator": {**position, SEEN: batches // num_processes}}
