"""The checkpoints that a run goes on from, or begins with."""

from __future__ import annotations

import filecmp
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import regular_file

LAST = "checkpoint_last.pt"  # the default of `--restore-file`, which stands for this file in `--save-dir`


def checkpoint_of(args: Namespace) -> str | None:
    """The checkpoint that a run goes on from, or else begins with, by fairseq's rules; None if there is none."""
    own = os.path.join(args.save_dir, LAST) if args.restore_file == LAST else args.restore_file
    paths = (own, args.continue_once, args.finetune_from_model)
    return next((path for path in paths if path and os.path.isfile(path)), None)


def check_named_checkpoints(args: Namespace) -> None:
    """Raise the `UserError` that names a checkpoint which an option asks for, and which is not there."""
    for option in ("continue_once", "finetune_from_model"):
        if getattr(args, option):
            regular_file(getattr(args, option), f"a checkpoint to begin with (`--{option.replace('_', '-')}`)")


def refuse_other_tasks(option: str, path: str, before: Sequence[str], now: Sequence[str], rule: str = "") -> NoReturn:
    """Say that a checkpoint is of a run of other tasks."""
    raise UserError(
        f"`{option}` must be {','.join(before)}{rule}, to go on from `{path}`, but is {','.join(now)} instead; "
        f"`--finetune-from-model {path}` with another `--save-dir` begins a run of other tasks with its weights."
    )


def expect_same_backbone(option: str, path: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse another file of a backbone than the one that a checkpoint's run began with, as far as both are there.

    Raises:
        UserError: that sentence.
    """
    name = option.removeprefix("--").replace("-", "_")
    old, new = before.get(name), now.get(name)
    if not (isinstance(old, str) and isinstance(new, str) and os.path.isfile(old) and os.path.isfile(new)):
        return
    if os.path.samefile(old, new) or filecmp.cmp(old, new, shallow=False):
        return
    raise UserError(
        f"`{option}` must be `{old}`, as when the run of `{path}` began, or be left out, but is `{new}`, another "
        f"one, instead; another `--save-dir` begins a run with it, and `--finetune-from-model {path}` one with the "
        "checkpoint's weights."
    )
