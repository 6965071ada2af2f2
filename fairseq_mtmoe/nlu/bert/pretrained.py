"""Read and write pretrained encoders: Hugging Face's folders and our file.

A folder has `config.json`, the weights (safetensors or torch files, whole or in parts with an
index), and the tokenizer's files. Our file holds all of it with a checksum:
`{"encoder": sizes, "tokenizer": texts, "model": tensors}`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io, hugging_face
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import read_text
from fairseq_mtmoe.nlu.bert.config import BERT, ROBERTA, EncoderConfig, read_config
from fairseq_mtmoe.nlu.bert.encoder import BertEncoder
from fairseq_mtmoe.nlu.bert.key_map import KEYS

# Files of WordPiece and byte-level BPE tokenizers, in all versions.
VOCABULARIES = "tokenizer.json", "vocab.txt", "vocab.json"  # a tokenizer has at least one
TOKENIZER_FILES = (
    *VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_SMALL = 2.0**-14  # a scale without rounding errors that half precision can represent


@dataclass(frozen=True)
class PretrainedEncoder:
    """A pretrained encoder with its tokenizer."""

    config: EncoderConfig
    # The text of the tokenizer's files, by their names in Hugging Face's folder.
    tokenizer: dict[str, str]
    state: dict[str, Tensor]  # of a dense `BertEncoder`, in float32

    def save(self, path: str | Path) -> None:
        """Write the file, completely or not at all."""
        sizes = dataclasses.asdict(self.config)
        file_io.save(
            {"encoder": sizes, "tokenizer": self.tokenizer, "model": self.state}, str(path)
        )


def load(path: str | Path, content: Mapping[str, Any] | None = None) -> PretrainedEncoder:
    """Read a file of `save`, or its `content`.

    Raises `UserError`: the file is damaged, or of another kind.
    """
    config, content = hugging_face.read_imported(
        path, content, "encoder", EncoderConfig, wanted_tensors
    )
    tokenizer: Any = content.get("tokenizer")
    is_text = isinstance(tokenizer, dict) and all(
        isinstance(text, str) for text in tokenizer.values()
    )
    if not is_text or not set(tokenizer) <= set(TOKENIZER_FILES):
        raise UserError(f"`{path}` does not contain the text of a tokenizer's files.")
    return PretrainedEncoder(config, tokenizer, content["model"])


def wanted_tensors(config: EncoderConfig) -> dict[str, Tensor]:
    """Return the state of an encoder of these sizes on the meta device."""
    with torch.device("meta"):
        return BertEncoder(config).state_dict()


def read_folder(folder: Path) -> hugging_face.Imported[PretrainedEncoder]:
    """Read a folder's encoder in float32.

    Raises `UserError`: a file is missing, damaged or of another model.
    """
    sizes = hugging_face.config_values(folder, (BERT, ROBERTA))
    state, left_out = hugging_face.read_state(folder, KEYS, "BERT or RoBERTa")
    config = read_config(sizes, has_pooler="pooler.weight" in state)
    hugging_face.check_tensors(folder, wanted_tensors(config), state, KEYS.hugging_face_key)
    hugging_face.check_finite(folder, state, KEYS.hugging_face_key)
    tokenizer = {
        name: read_text(folder / name) for name in TOKENIZER_FILES if (folder / name).exists()
    }
    if not any(name in tokenizer for name in VOCABULARIES):
        raise UserError(f"`{folder}` contains no tokenizer ({' or '.join(VOCABULARIES)}).")
    return hugging_face.Imported(PretrainedEncoder(config, tokenizer, state), left_out)


def write_folder(
    encoder: PretrainedEncoder, folder: Path, head: hugging_face.Additions | None = None
) -> None:
    """Write a folder that `transformers` loads; see `write_model`."""
    values = encoder.config.for_hugging_face()
    base = "" if head is None else f"{encoder.config.model_type}."
    tensors = {
        f"{base}{KEYS.hugging_face_key(name)}": value for name, value in encoder.state.items()
    }
    if head is not None:
        values = {**values, **head.values}
        tensors |= head.tensors
    files = {name: text.encode("utf-8") for name, text in encoder.tokenizer.items()}
    hugging_face.write_model(folder, values, files, tensors)


def classifier(
    config: EncoderConfig, weight: Tensor, bias: Tensor, labels: Sequence[str]
) -> hugging_face.Additions:
    """Return the additions of `…ForSequenceClassification` for a task's head.

    Our head reads the state of [CLS] without a pooler. Hugging Face's classifier applies tanh to a
    map of this state. The map here scales the state
    h by 2⁻¹⁴, so that tanh changes it only by h³/3 · 2⁻²⁸, and the output layer scales back.

    Args:
        weight, bias: of the head, (C, H) and (C,).
        labels: names of the outputs; empty for a regression with one output.
    """
    kind, dense, output = {
        BERT: ("BertForSequenceClassification", "bert.pooler.dense", "classifier"),
        ROBERTA: ("RobertaForSequenceClassification", "classifier.dense", "classifier.out_proj"),
    }[config.model_type]
    names = labels or ("value",)
    values = {
        "architectures": [kind],
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": "single_label_classification" if labels else "regression",
    }
    tensors = {
        f"{dense}.weight": torch.eye(config.hidden_size) * _SMALL,
        f"{dense}.bias": torch.zeros(config.hidden_size),
        f"{output}.weight": weight / _SMALL,
        f"{output}.bias": bias,
    }
    return hugging_face.Additions(values, tensors)
