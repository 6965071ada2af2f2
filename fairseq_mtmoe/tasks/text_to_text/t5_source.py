"""The T5 and SentencePiece model that a run begins with, from a pretrained file or a checkpoint, and its dictionary."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_mtmoe.backbones.t5 import model_file
from fairseq_mtmoe.backbones.t5.config import T5Config
from fairseq_mtmoe.backbones.t5.model_file import PretrainedT5
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.data.nlu.text_split import END, PADDING, UNKNOWN, Pieces
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.tasks._multitask.initial_checkpoint import check_named_checkpoints, checkpoint_of

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


SENTINELS = 100  # `<extra_id_99>` to `<extra_id_0>` follow T5's pieces, and then numbers that nothing has


def begun_dictionary() -> Dictionary:
    """That of the first three pieces; fairseq asks for a task's dictionary before it reads a checkpoint."""
    return Dictionary(bos=PADDING, pad=PADDING, eos=END, unk=UNKNOWN)


def fill_dictionary(dictionary: Dictionary, pieces: Pieces, vocab_size: int) -> None:
    """Add the other pieces, sentinels, and what else has an embedding.

    Raises:
        UserError: there are more pieces than embeddings, or two are the same.
    """
    if len(pieces) > vocab_size:
        raise_invalid(
            "spiece.model", f"a model of at most as many pieces as the T5 has embeddings, {vocab_size}", len(pieces)
        )
    if len(dictionary) == vocab_size:
        return
    named = list(pieces)
    for number in range(len(pieces), vocab_size):
        sentinel = len(pieces) + SENTINELS - 1 - number
        named.append(f"<extra_id_{sentinel}>" if sentinel >= 0 else f"<unused_{number}>")
    for symbol in named[len(dictionary) :]:
        dictionary.add_symbol(symbol)
    if len(dictionary) != vocab_size:
        raise UserError("`spiece.model` must have no piece twice, and none that is called as T5's sentinels are.")
