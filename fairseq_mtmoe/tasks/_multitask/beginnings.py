"""The checkpoints that a run goes on from, or begins with."""

from __future__ import annotations

import os
from argparse import Namespace

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
