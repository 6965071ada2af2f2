"""What a run goes on from: a checkpoint that is there, with the moments of the same optimizer for the same loss.

fairseq trains from scratch, without a word, where the file that it was told to go on from is not there, and ends in an
assertion where criterion or optimizer are others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fairseq.criterions import CRITERION_REGISTRY
from fairseq.file_io import PathManager
from fairseq.optim import OPTIMIZER_REGISTRY

from fairseq_mtmoe.checkpoints import loading, mismatch, reader
from fairseq_mtmoe.errors import UserError, must_be
from fairseq_mtmoe.io.files import regular_file
from fairseq_mtmoe.protocols import GoesOn

LAST = "checkpoint_last.pt"  # the default of `--restore-file`, which stands for this file in `--save-dir`

# fairseq's wrappers of an optimizer, whose state is not the optimizer's own.
WRAPPERS = {
    "FP16Optimizer": "one in half precision (`--fp16` or `--bf16`)",
    "MemoryEfficientFP16Optimizer": "one in half precision (`--memory-efficient-fp16` or `--memory-efficient-bf16`)",
    "AMPOptimizer": "one with `--amp`",
    "FairseqBMUF": "one with `--use-bmuf`",
}


def expect_what_is_asked_for(cfg: Any, suffix: str) -> None:
    """Refuse a file to go on from that is none.

    Raises:
        UserError: that sentence.
    """
    asked = asked_for(cfg, suffix)
    if asked is not None:
        expect(*asked)


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


def expect(path: str, option: str) -> None:
    """Refuse a file to go on from that is none.

    Raises:
        UserError: there is no such file.
    """
    if not PathManager.path_requires_pathmanager(path):
        regular_file(path, f"a checkpoint to go on from (`{option}`)")
    elif not PathManager.isfile(path):
        must_be(option, "a checkpoint to go on from", path)


def another_optimizer(cfg: Any, path: str) -> str | None:
    """The optimizer of the run that saved a checkpoint, where this run has another one of the same state."""
    if PathManager.path_requires_pathmanager(path):
        return None
    state = reader.peek(path) or {}
    options = (state.get("cfg") or {}).get("optimizer")
    saved = options.get("_name") if isinstance(options, Mapping) else getattr(state.get("args"), "optimizer", None)
    return saved if isinstance(saved, str) and saved != cfg.optimizer._name else None


@contextmanager
def naming_what_differs(trainer: Any, path: str, goes_on: bool) -> Iterator[None]:
    """Inside, what a checkpoint has otherwise than the run is said in a sentence: model, criterion, optimizer.

    Args:
        trainer: that loads it.
        path: of the checkpoint.
        goes_on: with the optimizer's moments; then tasks and backbone must be the checkpoint's, too.

    Raises:
        UserError: that sentence.
    """
    try:
        expect = trainer.task.expect_same_run if goes_on and isinstance(trainer.task, GoesOn) else None
        with (
            loading.within(expect=expect, loaded=[]) as context,
            mismatch.explained(trainer.get_model(), context.loaded),
        ):
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
