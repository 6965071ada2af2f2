"""Hugging Face's folders of a BERT or RoBERTa: reading them, and writing them.

A folder has `config.json`, the weights (safetensors, or a file of torch, in one file or in parts with an index), and
the files of its tokenizer. Nothing in it is executed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fairseq_mtmoe.backbones.bert.config import BERT, ROBERTA, EncoderConfig, read_config
from fairseq_mtmoe.backbones.bert.encoder_file import TOKENIZER_FILES, VOCABULARIES, PretrainedEncoder, wanted_tensors
from fairseq_mtmoe.backbones.bert.key_map import hugging_face_key, our_key
from fairseq_mtmoe.backbones.hugging_face import CONFIG, Additions, check_tensors, read_weights, renamed, write_model
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import read_json, read_text

_SMALL = 2.0**-14  # a scale that costs no digit, and that half precision can hold


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


def base_name(config: EncoderConfig, classifies: bool) -> str:
    """What names of the encoder's parameters begin with in a folder."""
    return f"{config.model_type}." if classifies else ""


def classifier(config: EncoderConfig, weight: Tensor, bias: Tensor, labels: Sequence[str]) -> Additions:
    """What `…ForSequenceClassification` has beside the encoder for the head of one task, which reads [CLS]'s own state.

    Its map of [CLS]'s state ends in a tanh, which leaves a state h that is scaled down by 2⁻¹⁴ as it is, to
    h³/3 · 2⁻²⁸.

    Args:
        config: of the encoder.
        weight: of the head, (C, H).
        bias: (C,).
        labels: what the C outputs are called; none: the one output is a value.
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
    return Additions(values, tensors)


def write_folder(encoder: PretrainedEncoder, folder: Path, *additions: Additions) -> None:
    """Write the folder, completely or not at all, so that `transformers` loads it.

    Raises:
        UserError: there is something in its place, it cannot be written, or `safetensors` is not installed.
    """
    base = base_name(encoder.config, classifies=any("problem_type" in more.values for more in additions))
    tensors = {f"{base}{hugging_face_key(name)}": value for name, value in encoder.state.items()}
    files = {name: text.encode("utf-8") for name, text in encoder.tokenizer.items()}
    write_model(folder, encoder.config.for_hugging_face(), files, tensors, additions)


def _read_tokenizer(folder: Path) -> dict[str, str]:
    tokenizer = {name: read_text(folder / name) for name in TOKENIZER_FILES if (folder / name).exists()}
    if not any(name in tokenizer for name in VOCABULARIES):
        raise UserError(f"`{folder}` must have a tokenizer ({' or '.join(VOCABULARIES)}), but has none.")
    return tokenizer
