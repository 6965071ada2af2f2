"""A BERT or RoBERTa that was trained elsewhere: from Hugging Face's folder, in one file of ours, and back to a folder.

A folder has `config.json`, the weights (safetensors, or a file of torch, whole or in parts with an index), and the
tokenizer's files. Our file holds all, with a checksum: `{"encoder": sizes, "tokenizer": texts, "model": tensors}`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.backbones import hugging_face
from fairseq_mtmoe.backbones.bert.config import BERT, ROBERTA, EncoderConfig, read_config
from fairseq_mtmoe.backbones.bert.encoder import BertEncoder
from fairseq_mtmoe.backbones.bert.key_map import KEYS
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, read_text

# Those of WordPiece and of byte-level BPE, in all versions.
TOKENIZER_FILES = (
    *("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")  # of which a tokenizer has one at least
_SMALL = 2.0**-14  # a scale that costs no digit, and that half precision can hold


@dataclass(frozen=True)
class PretrainedEncoder:
    """An encoder that was trained elsewhere."""

    config: EncoderConfig
    tokenizer: dict[str, str]  # text of its tokenizer's files, by their names in Hugging Face's folder
    state: dict[str, Tensor]  # a dense `BertEncoder`'s, in float32

    def save(self, path: str | Path) -> None:
        """Write the file, completely or not at all."""
        sizes = dataclasses.asdict(self.config)
        file_io.save({"encoder": sizes, "tokenizer": self.tokenizer, "model": self.state}, str(path))


def load(path: str | Path, content: Mapping[str, Any] | None = None) -> PretrainedEncoder:
    """The encoder in a file of `save`, whose content may be known; UserError where it is damaged or another."""
    content = hugging_face.read_imported(path, content)
    sizes, tokenizer, state = (content.get(name) for name in ("encoder", "tokenizer", "model"))
    if not (isinstance(sizes, dict) and isinstance(tokenizer, dict) and isinstance(state, dict)):
        raise UserError(f"`{path}` must be a file of `mtmoe import-hf`, but has no encoder with its tokenizer.")
    config = hugging_face.saved_config(path, EncoderConfig, sizes)
    if not all(name in TOKENIZER_FILES and isinstance(text, str) for name, text in tokenizer.items()):
        raise UserError(f"`{path}` must hold text of a tokenizer's files, but holds something else.")
    hugging_face.check_tensors(path, wanted_tensors(config), state)
    return PretrainedEncoder(config, tokenizer, state)


def wanted_tensors(config: EncoderConfig) -> dict[str, Tensor]:
    """The state of an encoder of these sizes, without values."""
    with torch.device("meta"):
        return BertEncoder(config).state_dict()


def read_folder(folder: Path) -> hugging_face.Imported[PretrainedEncoder]:
    """The encoder in a folder, in float32. Raises `UserError` where a file is missing, damaged or another model's."""
    sizes = read_json(folder / hugging_face.CONFIG, "the `config.json` of an encoder's folder")
    state, left_out = hugging_face.read_state(folder, KEYS, "BERT or RoBERTa")
    config = read_config(sizes, has_pooler="pooler.weight" in state)
    hugging_face.check_tensors(folder, wanted_tensors(config), state, KEYS.hugging_face_key)
    hugging_face.check_finite(folder, state, KEYS.hugging_face_key)
    tokenizer = {name: read_text(folder / name) for name in TOKENIZER_FILES if (folder / name).exists()}
    if not any(name in tokenizer for name in VOCABULARIES):
        raise UserError(f"`{folder}` must have a tokenizer ({' or '.join(VOCABULARIES)}), but has none.")
    return hugging_face.Imported(PretrainedEncoder(config, tokenizer, state), left_out)


def write_folder(encoder: PretrainedEncoder, folder: Path, *additions: hugging_face.Additions) -> None:
    """Write the folder so that `transformers` loads it; see `write_model`."""
    base = base_name(encoder.config, classifies=any("problem_type" in more.values for more in additions))
    tensors = {f"{base}{KEYS.hugging_face_key(name)}": value for name, value in encoder.state.items()}
    files = {name: text.encode("utf-8") for name, text in encoder.tokenizer.items()}
    hugging_face.write_model(folder, encoder.config.for_hugging_face(), files, tensors, additions)


def base_name(config: EncoderConfig, classifies: bool) -> str:
    """What names of the encoder's parameters begin with in a folder."""
    return f"{config.model_type}." if classifies else ""


def classifier(config: EncoderConfig, weight: Tensor, bias: Tensor, labels: Sequence[str]) -> hugging_face.Additions:
    """What `…ForSequenceClassification` has beside the encoder for the head of one task, which reads [CLS]'s own state.

    Its map of [CLS]'s state ends in a tanh, which leaves a state h that is scaled down by 2⁻¹⁴ as it is, to
    h³/3 · 2⁻²⁸. The head has a weight (C, H) and a bias (C,); without `labels` of its outputs the only one is a value.
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
