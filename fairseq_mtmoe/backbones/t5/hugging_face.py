"""Hugging Face's folders of a T5: reading them, and writing them.

A folder has `config.json`, the weights, and `spiece.model`, the model of SentencePiece that T5s come with.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_mtmoe.backbones.hugging_face import CONFIG, check_tensors, read_weights, renamed, write_model
from fairseq_mtmoe.backbones.t5.config import read_config
from fairseq_mtmoe.backbones.t5.key_map import OUR_EMBEDDINGS, OUR_OUTPUT, hugging_face_key, our_key
from fairseq_mtmoe.backbones.t5.model_file import PretrainedT5, bare_state, wanted_tensors
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, regular_file

PIECES = "spiece.model"


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
    config = read_config(read_json(folder / CONFIG, "the `config.json` of a T5's folder"))
    state, left_out = renamed(folder, read_weights(folder), our_key, "T5")
    if not config.tie_word_embeddings and OUR_OUTPUT not in state and OUR_EMBEDDINGS[0] in state:
        state[OUR_OUTPUT] = state[OUR_EMBEDDINGS[0]].clone()  # newer versions write one tensor where both are equal
    state = bare_state(state, config)
    check_tensors(folder, wanted_tensors(config), state, lambda name: hugging_face_key(name, config.is_gated))
    return Imported(PretrainedT5(config, _read_pieces(folder), state), tuple(left_out))


def write_folder(model: PretrainedT5, folder: Path) -> None:
    """Write the folder, completely or not at all, so that `transformers` loads it.

    Raises:
        UserError: there is something in its place, it cannot be written, or `safetensors` is not installed.
    """
    config = json.dumps(model.config.for_hugging_face(), indent=2) + "\n"
    files = {CONFIG: config.encode("utf-8"), PIECES: model.sentencepiece}
    gated = model.config.is_gated
    write_model(folder, files, ((hugging_face_key(name, gated), value) for name, value in model.state.items()))


def _read_pieces(folder: Path) -> bytes:
    if not (folder / PIECES).exists():
        raise UserError(f"`{folder}` must have `{PIECES}`, the T5's model of SentencePiece, but has none.")
    return regular_file(folder / PIECES).read_bytes()


def is_of_t5(values: Any) -> bool:
    """Whether a `config.json` says that its folder holds a T5."""
    return isinstance(values, dict) and values.get("model_type") == "t5"
