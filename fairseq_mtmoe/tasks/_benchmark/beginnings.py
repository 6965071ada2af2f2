"""The checkpoints that a run goes on from, or begins with."""

from __future__ import annotations

import os
from argparse import Namespace

from fairseq_mtmoe.io.files import regular_file


def checkpoint_of(args: Namespace) -> str | None:
    """The checkpoint that a run goes on from, or begins with; None if there is none."""
    last = os.path.join(args.save_dir, args.restore_file)
    paths = (args.continue_once, args.finetune_from_model, args.restore_file, last)
    return next((path for path in paths if path and os.path.isfile(path)), None)


def check_named_checkpoints(args: Namespace) -> None:
    """Raise the `UserError` that names a checkpoint which an option asks for, and which is not there."""
    for option in ("continue_once", "finetune_from_model"):
        if getattr(args, option):
            regular_file(getattr(args, option), f"a checkpoint to begin with (`--{option.replace('_', '-')}`)")
