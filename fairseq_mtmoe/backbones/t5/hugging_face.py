"""Hugging Face's folders of a T5: reading them, and writing them.

A folder has `config.json`, the weights, and `spiece.model`, the model of SentencePiece that T5s come with, or the
`tokenizer.json` that it becomes in version 5 of `transformers`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fairseq_mtmoe.backbones.hugging_face import CONFIG, Additions, check_tensors, read_weights, renamed, write_model
from fairseq_mtmoe.backbones.t5.config import read_config
from fairseq_mtmoe.backbones.t5.key_map import OUR_EMBEDDINGS, OUR_OUTPUT, hugging_face_key, our_key
from fairseq_mtmoe.backbones.t5.model import bare_state
from fairseq_mtmoe.backbones.t5.model_file import PretrainedT5, wanted_tensors
from fairseq_mtmoe.backbones.t5.spiece import spiece_of
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_bytes, read_json

PIECES, TOKENIZER = "spiece.model", "tokenizer.json"


@dataclass(frozen=True)
class Imported:
    """What a folder holds: the model, and the names of tensors that are no part of it, or there twice."""

    model: PretrainedT5
    left_out: tuple[str, ...]


def read_folder(folder: Path) -> Imported:
    """The T5 in a folder; weights in half precision become float32.

    Raises:
        UserError: a file is missing, damaged, or of another kind of model.
    """
    values = read_json(folder / CONFIG, "the `config.json` of a T5's folder")
    config = read_config(values)
    state, left_out = renamed(folder, read_weights(folder), our_key, "T5")
    embeddings, output = state.get(OUR_EMBEDDINGS[0]), state.get(OUR_OUTPUT)
    if output is not None and embeddings is not None:
        # Version 5 says "tied" of every T5, and ties those whose two tensors are equal, or where one is left out.
        of_version_5 = config.tie_word_embeddings or "scale_decoder_outputs" in values
        config = replace(config, tie_word_embeddings=of_version_5 and torch.equal(output, embeddings))
    elif embeddings is not None and not config.tie_word_embeddings:
        state[OUR_OUTPUT] = embeddings.clone()
    state = bare_state(state, config)
    check_tensors(folder, wanted_tensors(config), state, lambda name: hugging_face_key(name, config.is_gated))
    return Imported(PretrainedT5(config, _read_pieces(folder), state), tuple(left_out))


def write_folder(model: PretrainedT5, folder: Path, *additions: Additions) -> None:
    """Write the folder, completely or not at all, so that `transformers` loads it.

    Raises:
        UserError: there is something in its place, it cannot be written, or `safetensors` is not installed.
    """
    state, gated = dict(model.state), model.config.is_gated
    if model.config.has_own_output:
        state.setdefault(OUR_OUTPUT, state[OUR_EMBEDDINGS[0]].clone())
    tensors = {hugging_face_key(name, gated): value for name, value in state.items()}
    write_model(folder, model.config.for_hugging_face(), {PIECES: model.sentencepiece}, tensors, additions)


def _read_pieces(folder: Path) -> bytes:
    if (folder / PIECES).exists():
        pieces = read_bytes(folder / PIECES)
        if not pieces:
            raise UserError(f"`{folder / PIECES}` must be a model of SentencePiece, but is empty.")
        return pieces
    if (folder / TOKENIZER).exists():
        return spiece_of(read_json(folder / TOKENIZER))
    raise UserError(
        f"`{folder}` must have `{PIECES}`, the T5's model of SentencePiece, or `{TOKENIZER}`, but has none."
    )


def is_of_t5(values: Any) -> bool:
    """Whether a `config.json` says that its folder holds a T5."""
    return isinstance(values, dict) and values.get("model_type") == "t5"
