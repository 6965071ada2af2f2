"""Hugging Face's folders of a BERT or RoBERTa: reading them, and writing them.

A folder has `config.json`, the weights (safetensors, or a file of torch, in one file or in parts with an index), and
the files of its tokenizer. Nothing in it is executed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fairseq_mtmoe.backbones.bert.config import read_config
from fairseq_mtmoe.backbones.bert.encoder_file import TOKENIZER_FILES, VOCABULARIES, PretrainedEncoder, wanted_tensors
from fairseq_mtmoe.backbones.bert.key_map import hugging_face_key, our_key
from fairseq_mtmoe.backbones.hugging_face import CONFIG, check_tensors, read_weights, renamed, write_model
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, read_text


@dataclass(frozen=True)
class Imported:
    """What a folder holds: the encoder, and the names of tensors that are no part of it, such as heads."""

    encoder: PretrainedEncoder
    left_out: tuple[str, ...]


def read_folder(folder: Path) -> Imported:
    """The encoder in a folder; weights in half precision become float32.

    Raises:
        UserError: a file is missing, damaged, or of another kind of model.
    """
    sizes = read_json(folder / CONFIG, "the `config.json` of an encoder's folder")
    state, left_out = renamed(folder, read_weights(folder), our_key, "BERT or RoBERTa")
    config = read_config(sizes, has_pooler="pooler.weight" in state)
    check_tensors(folder, wanted_tensors(config), state, hugging_face_key)
    return Imported(PretrainedEncoder(config, _read_tokenizer(folder), state), tuple(left_out))


def write_folder(encoder: PretrainedEncoder, folder: Path) -> None:
    """Write the folder, completely or not at all, so that `transformers` loads it.

    Raises:
        UserError: there is something in its place, it cannot be written, or `safetensors` is not installed.
    """
    config = json.dumps(encoder.config.for_hugging_face(), indent=2) + "\n"
    files = {name: text.encode("utf-8") for name, text in {CONFIG: config, **encoder.tokenizer}.items()}
    write_model(folder, files, ((hugging_face_key(name), value) for name, value in encoder.state.items()))


def _read_tokenizer(folder: Path) -> dict[str, str]:
    tokenizer = {name: read_text(folder / name) for name in TOKENIZER_FILES if (folder / name).exists()}
    if not any(name in tokenizer for name in VOCABULARIES):
        raise UserError(f"`{folder}` must have a tokenizer ({' or '.join(VOCABULARIES)}), but has none.")
    return tokenizer
