"""Where a run's encoder and tokenizer come from: a pretrained encoder's file, or a checkpoint to go on from."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

from fairseq_mtmoe.backbones.bert import encoder_file
from fairseq_mtmoe.backbones.bert.config import EncoderConfig
from fairseq_mtmoe.backbones.bert.encoder_file import PretrainedEncoder
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.data.nlu.tokenizer_files import serialized_tokenizer
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.tasks._multitask.beginnings import check_named_checkpoints, checkpoint_of

TOKENIZER = "tokenizer"  # its name in a checkpoint's state of the task
SERIALIZED = "tokenizer.json"


def encoder_source(args: Namespace) -> PretrainedEncoder:
    """The encoder that a new model is built from; one from a checkpoint has sizes and no weights, which fairseq loads.

    Raises:
        UserError: there is none, or the file is damaged or another.
    """
    if args.init_encoder:
        found = encoder_file.load(args.init_encoder)
        return PretrainedEncoder(found.config, {SERIALIZED: serialized_tokenizer(found.tokenizer)}, found.state)
    path = checkpoint_of(args)
    if path is not None:
        return _of_checkpoint(path)
    check_named_checkpoints(args)
    raise UserError(
        "`--init-encoder` must name a file of `mtmoe import-hf`, or `--finetune-from-model` a checkpoint of "
        "`--task glue`, but both are missing."
    )


def _of_checkpoint(path: str) -> PretrainedEncoder:
    state: dict[str, Any] = file_io.load(path)
    try:
        config = EncoderConfig(**json.loads(state["cfg"]["model"]["encoder"]))
        return PretrainedEncoder(config, {SERIALIZED: state["task_state"][TOKENIZER]}, {})
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"`{path}` must be a checkpoint of `--task glue`, but has no encoder with a tokenizer."
        ) from error
