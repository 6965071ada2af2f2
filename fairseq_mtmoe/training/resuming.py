"""What a run goes on from: a checkpoint that is there, with the moments of the same optimizer for the same loss.

fairseq trains from scratch where the file is not there, and ends in an assertion where criterion or optimizer are
others. It saves how many batches one process has seen of an epoch, which is converted for tasks that do not count those
of all. These also draw their batches once, for the epoch of a process's start: a resumed run must draw for the same.
"""

import functools
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.file_io import PathManager
from fairseq.optim import OPTIMIZER_REGISTRY

from fairseq_mtmoe.checkpoints import assemble, loading, mismatch
from fairseq_mtmoe.checkpoints.file_io import CheckpointFile
from fairseq_mtmoe.checkpoints.sharding import has_experts, is_shared_part
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import regular_file
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement
from fairseq_mtmoe.optim.state import Parameters, trained_parameters
from fairseq_mtmoe.protocols import BecomesSparse, GoesOn
from fairseq_mtmoe.slots import expert_layers, expert_slots
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.training import screen
from fairseq_mtmoe.training.option_check import is_flat, with_option

logger = logging.getLogger(__name__)

SEEN = "iterations_in_epoch"
PROCESSES = "num_processes"
DRAWN = "drawn_in_epoch"
EXACT = "batches_in_epoch"  # in the state of an iterator that needs no conversion
LAST = "checkpoint_last.pt"  # the default of `--restore-file`, which stands for this file in `--save-dir`

# fairseq's wrappers of an optimizer, whose state is not the optimizer's own.
WRAPPERS = {
    "FP16Optimizer": "one in half precision (`--fp16` or `--bf16`)",
    "MemoryEfficientFP16Optimizer": "one in half precision (`--memory-efficient-fp16` or `--memory-efficient-bf16`)",
    "AMPOptimizer": "one with `--amp`",
    "FairseqBMUF": "one with `--use-bmuf`",
}


def expect_what_is_asked_for(cfg: Any, suffix: str) -> None:
    """Raise a `UserError` if the file to go on from is not there, or is none."""
    path, option = asked_for(cfg, suffix) or ("", "")
    if not path:
        return
    if not PathManager.path_requires_pathmanager(path):
        regular_file(path, f"a checkpoint to go on from (`{option}`)")
    elif not PathManager.isfile(path):
        raise_invalid(option, "a checkpoint to go on from", path)


def asked_for(cfg: Any, suffix: str) -> tuple[str, str] | None:
    """The file that a run goes on from and the option that names it, by fairseq's rules; None where it begins anew."""
    if cfg.restore_file != LAST:
        return cfg.restore_file.replace(".pt", f"{suffix}.pt"), "--restore-file"
    last = os.path.join(cfg.save_dir, LAST.replace(".pt", f"{suffix}.pt"))
    if os.path.lexists(last) or PathManager.exists(last):
        return last, "--save-dir"
    for name in ("continue_once", "finetune_from_model"):
        path = getattr(cfg, name, None)
        if path is not None:
            return path, f"--{name.replace('_', '-')}"
    return None


@contextmanager
def reading(trainer: Any, path: str, goes_on: bool) -> Iterator[None]:
    """Inside, each process reads a checkpoint itself, of a model with experts what it needs and no more.

    fairseq would send what the first process read, as a pickle of its options' classes, which safe loading refuses.
    A run that `goes_on` with its moments must have the checkpoint's tasks, backbone, criterion and optimizer.
    """
    expect = trainer.task.expect_same_run if goes_on and isinstance(trainer.task, GoesOn) else None
    context: dict[str, Any] = {"expect": expect, "loaded": []}
    several = trainer.data_parallel_world_size > 1
    if several and expert_slots(trainer.get_model()):
        context["read"] = functools.partial(_read_share, trainer)
    options = trainer.cfg.checkpoint
    on_all = with_option(options, "load_checkpoint_on_all_dp_ranks", several or options.load_checkpoint_on_all_dp_ranks)
    try:
        with loading.within(**context) as found, mismatch.explained(trainer.get_model(), found.loaded), on_all:
            yield
    except AssertionError as error:
        raise _refusal(trainer, path) or error from error
    except ValueError as error:
        if "loaded state dict" not in str(error):  # torch's, where a group of parameters is of another size
            raise
        raise UserError(
            f"`{path}` must hold the optimizer's moments of the parameters that are trained, but holds those of more "
            "or fewer; options such as `--share-all-embeddings`, `--freeze-layers`, `--conditional` and `--glue-tasks` "
            "decide which these are, `--reset-optimizer` goes on without the moments, and `--finetune-from-model` "
            "begins a run of other tasks with the weights."
        ) from error


def _refusal(trainer: Any, path: str) -> UserError | None:
    """The sentence that names another criterion or optimizer."""
    last = trainer._optim_history[-1] if trainer._optim_history else {}
    for option, saved, own, registry in (
        ("--criterion", last.get("criterion_name"), trainer.get_criterion(), CRITERION_REGISTRY),
        ("--optimizer", last.get("optimizer_name"), trainer.optimizer, OPTIMIZER_REGISTRY),
    ):
        name = type(own).__name__
        if saved != name:
            return UserError(
                f"`{option}` must be {_described(saved, registry)} to go on from `{path}` with the moments of its "
                f"optimizer, but is {_described(name, registry)} instead; `--reset-optimizer` goes on without them."
            )
    return None


def _described(class_name: Any, registry: Any) -> str:
    """The option's values that make an object of this class."""
    names = [name for name, kind in registry.items() if kind.__name__ == class_name]
    return WRAPPERS.get(class_name) or " or ".join(names) or str(class_name)


# ---- the share of each process ----


def _read_share(trainer: Any, path: str) -> dict[str, Any]:
    """What this process needs of a checkpoint, whoever wrote it; the model becomes sparse first if that is."""
    model = trainer.get_model()
    with CheckpointFile(path) as file:
        state = file.peek() or {}
        sparse = unwrapped(model)
        if isinstance(sparse, BecomesSparse) and sparse.is_dense and has_experts(state):
            sparse.sparsify()
        placement = placement_of(trainer)
        if placement is None or not (placement.is_sharded or is_shared_part(state)):
            return assemble.load_shared_part(path, file)
        try:
            return assemble.load_local(path, placement, trained_shapes(trainer), is_flat(trainer.cfg.common), file)
        except UserError as error:
            raise mismatch.refusal_of(model, path, file.load(mapped=True)) or error from error


def placement_of(trainer: Any) -> ExpertPlacement | None:
    """Which experts this process trains; None while the model has none."""
    layers = expert_layers(trainer.get_model()).values()
    return next((layer.experts.placement for layer in layers), None)


def trained_shapes(trainer: Any) -> Parameters:
    """Names and local shapes of the trained parameters, in the order of fairseq's optimizer."""
    modules = {"": trainer.get_model(), "criterion.": trainer.get_criterion()}
    return [(at + name, value.shape) for at, module in modules.items() for name, value in trained_parameters(module)]


# ---- the position in an epoch ----


def begin_no_epoch_if_complete(trainer: Any) -> None:
    """Begin no epoch in a run that has made its updates: fairseq asks only after another one."""
    limit = trainer.cfg.optimization.max_update
    if limit and trainer.get_num_updates() >= limit:
        made = f"the run has made its {trainer.get_num_updates()} updates (--max-update {limit})"
        logger.info(made, extra=screen.FOR_SCREEN)
        trainer.cfg.optimization.max_epoch = -1


def with_epoch_position(extra_state: dict[str, Any], num_processes: int, drawn: int | None) -> dict[str, Any]:
    """What fairseq saves beside a model, with the number of processes and the epoch for which batches were drawn."""
    position = extra_state.get("train_iterator")
    if position is None or EXACT in position:
        return extra_state
    return {**extra_state, "train_iterator": {**position, PROCESSES: num_processes, DRAWN: drawn}}


def drawn_in_epoch(extra_state: dict[str, Any] | None) -> int | None:
    """The epoch for which the batches of a position were drawn; None if any will do, or it is not known."""
    drawn: int | None = (extra_state or {}).get("train_iterator", {}).get(DRAWN)
    return drawn


def adapt_epoch_position(extra_state: dict[str, Any] | None, num_processes: int) -> dict[str, Any] | None:
    """What was saved, with the position in the epoch of so many processes; between two of them, the earlier one."""
    position = (extra_state or {}).get("train_iterator", {})
    before = position.get(PROCESSES, num_processes)
    if extra_state is None or EXACT in position or before == num_processes:
        return extra_state
    batches = position[SEEN] * before
    again = batches % num_processes
    if again:
        logger.warning(f"{again} batches of this epoch are seen twice: {batches} were, by {before} processes")
    return {**extra_state, "train_iterator": {**position, SEEN: batches // num_processes}}
