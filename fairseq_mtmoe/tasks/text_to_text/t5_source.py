"""Where a run's T5 and its SentencePiece model come from: a pretrained one's file, or a checkpoint to go on from."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.backbones.t5 import model_file
from fairseq_mtmoe.backbones.t5.config import T5Config
from fairseq_mtmoe.backbones.t5.model_file import PretrainedT5
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.tasks._multitask.beginnings import check_named_checkpoints, checkpoint_of

PIECES = "sentencepiece"  # its name in a checkpoint's state of the task


def t5_source(args: Namespace) -> PretrainedT5:
    """The T5 that a new model is built from; one from a checkpoint has sizes and no weights, which fairseq loads.

    Raises:
        UserError: there is none, or the file is damaged or another.
    """
    if args.init_model:
        return model_file.load(args.init_model)
    path = checkpoint_of(args)
    if path is not None:
        return _of_checkpoint(path)
    check_named_checkpoints(args)
    raise UserError(
        "`--init-model` must name a file of `mtmoe import-hf` with a T5, or `--finetune-from-model` a checkpoint of "
        "`--task text_to_text`, but both are missing."
    )


def as_tensor(pieces: bytes) -> Tensor:
    """The content of a `spiece.model` as a checkpoint holds it."""
    return torch.frombuffer(bytearray(pieces), dtype=torch.uint8)


def of_tensor(pieces: Tensor) -> bytes:
    """The reverse."""
    return pieces.numpy().tobytes()


def _of_checkpoint(path: str) -> PretrainedT5:
    state: dict[str, Any] = file_io.load(path)
    try:
        config = T5Config(**json.loads(state["cfg"]["model"]["t5"]))
        return PretrainedT5(config, of_tensor(state["task_state"][PIECES]), {})
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise UserError(
            f"`{path}` must be a checkpoint of `--task text_to_text`, but has no T5 with its pieces."
        ) from error
