"""Read and write pretrained T5s: Hugging Face's folders and our single file.

A folder has `config.json`, the weights, and `spiece.model`, a unigram SentencePiece model in
protobuf's format. Version 5 of `transformers` writes a `tokenizer.json` instead. Our file holds all
of it with a checksum: `{"t5": sizes, "sentencepiece": its bytes as a tensor, "model": tensors}`.
"""

import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io, hugging_face
from fairseq_mtmoe.checkpoints.key_maps import EMBEDDINGS, OUTPUT
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_bytes, read_json
from fairseq_mtmoe.core.piece_models import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    character_table,
    check_pre_tokenizer,
    serialized,
)  # fmt: skip
from fairseq_mtmoe.nlu.t5.config import T5, T5Config, read_config
from fairseq_mtmoe.nlu.t5.key_map import KEYS
from fairseq_mtmoe.nlu.t5.model import T5Model, bare_state

PIECES = "spiece.model"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class PretrainedT5:
    """A pretrained T5 with its SentencePiece model."""

    config: T5Config
    sentencepiece: bytes  # the content of its `spiece.model`
    state: dict[str, Tensor]  # `bare_state` of a `T5Model` without slots, in float32

    def save(self, path: str | Path) -> None:
        """Write the file, completely or not at all."""
        pieces = torch.from_numpy(np.frombuffer(self.sentencepiece, dtype=np.uint8).copy())
        file_io.save(
            {T5: asdict(self.config), "sentencepiece": pieces, "model": self.state}, str(path)
        )


def load(path: str | Path, content: Mapping[str, Any] | None = None) -> PretrainedT5:
    """Read a file of `PretrainedT5.save`, or its `content`.

    Raises `UserError`: it is damaged or another kind of file.
    """
    config, content = hugging_face.read_imported(path, content, T5, T5Config, wanted_tensors)
    pieces = content.get("sentencepiece")
    if not torch.is_tensor(pieces) or pieces.dtype != torch.uint8 or not pieces.numel():
        raise UserError(f"`{path}` contains no SentencePiece model.")
    return PretrainedT5(config, pieces.numpy().tobytes(), content["model"])


def wanted_tensors(config: T5Config) -> dict[str, Tensor]:
    """Return the `bare_state` of a T5 of these sizes on the meta device."""
    with torch.device("meta"):
        return bare_state(T5Model(config, Dictionary()).state_dict(), config)


def read_folder(folder: Path) -> hugging_face.Imported[PretrainedT5]:
    """Read a folder's T5 in float32.

    Raises `UserError`: a file is missing, damaged or of another model.
    """
    values = hugging_face.config_values(folder, (T5,))
    config = read_config(values)
    keys = KEYS[config.is_gated]
    state, left_out = hugging_face.read_state(folder, keys, "T5")
    embeddings = state.get(EMBEDDINGS[0])
    output = state.get(OUTPUT)
    if output is not None and embeddings is not None:
        # Version 5 marks every T5 as tied, but ties only equal tensors, or if one is missing.
        is_version_5 = config.tie_word_embeddings or "scale_decoder_outputs" in values
        config = replace(
            config, tie_word_embeddings=is_version_5 and torch.equal(output, embeddings)
        )
    elif embeddings is not None and not config.tie_word_embeddings:
        state[OUTPUT] = embeddings.clone()
    state = bare_state(state, config)
    hugging_face.check_tensors(folder, wanted_tensors(config), state, keys.hugging_face_key)
    hugging_face.check_finite(folder, state, keys.hugging_face_key)
    return hugging_face.Imported(PretrainedT5(config, _read_pieces(folder), state), left_out)


def write_folder(model: PretrainedT5, folder: Path) -> None:
    """Write a folder that `transformers` loads; see `write_model`."""
    state = dict(model.state)
    keys = KEYS[model.config.is_gated]
    # `transformers` needs a copy of untied embeddings.
    if not (model.config.tie_word_embeddings and model.config.scale_decoder_outputs):
        state.setdefault(OUTPUT, state[EMBEDDINGS[0]].clone())
    tensors = {keys.hugging_face_key(name): value for name, value in state.items()}
    hugging_face.write_model(
        folder, model.config.for_hugging_face(), {PIECES: model.sentencepiece}, tensors
    )


def _read_pieces(folder: Path) -> bytes:
    if (folder / TOKENIZER).exists() and not (folder / PIECES).exists():
        return spiece_of(read_json(folder / TOKENIZER))
    pieces = read_bytes(folder / PIECES, "the T5's SentencePiece model")
    if not pieces:
        raise UserError(f"`{folder / PIECES}` must be a SentencePiece model, but is empty.")
    return pieces


SENTINEL = re.compile(r"<extra_id_\d+>")  # `tokenizer.json` lists these 100 after the pieces
SPECIAL = ("<pad>", "</s>", "<unk>")  # pieces 0, 1 and 2


def spiece_of(tokenizer: Any) -> bytes:
    """Return the `spiece.model` of a T5's `tokenizer.json`.

    Raises `UserError`: it is another model's.
    """
    try:
        vocabulary = tokenizer["model"]["vocab"]
        if tokenizer["model"]["type"] != "Unigram" or tokenizer["model"]["unk_id"] != SPECIAL.index(
            "<unk>"
        ):
            raise ValueError("it is not a unigram model")
        table = character_table(tokenizer["normalizer"])
        check_pre_tokenizer(tokenizer["pre_tokenizer"])
        while vocabulary and SENTINEL.fullmatch(vocabulary[-1][0]):
            vocabulary = vocabulary[:-1]
        if [piece for piece, _ in vocabulary[:3]] != list(SPECIAL):
            raise ValueError("its first pieces are not T5's")
        kinds = {token["content"]: USER_DEFINED for token in tokenizer["added_tokens"]}
        kinds |= dict.fromkeys(SPECIAL, CONTROL) | {"<unk>": UNKNOWN}
        pieces = [(piece, float(score), kinds.get(piece, NORMAL)) for piece, score in vocabulary]
        return serialized(pieces, table, {"unk": 2, "bos": -1, "eos": 1, "pad": 0})
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        struct.error,
    ) as error:
        raise UserError(
            "`tokenizer.json` must be a T5's if there is no `spiece.model` beside it, but is not: "
            "copy the `spiece.model` of the T5 from which this one was trained."
        ) from error
