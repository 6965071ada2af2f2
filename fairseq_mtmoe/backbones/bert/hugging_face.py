"""Hugging Face's folders of a BERT or RoBERTa: reading them, and writing them.

A folder has `config.json`, the weights (safetensors, or a file of torch, in one file or in parts with an index), and
the files of its tokenizer. Nothing in it is executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.backbones.bert.config import read_config
from fairseq_mtmoe.backbones.bert.encoder_file import TOKENIZER_FILES, VOCABULARIES, PretrainedEncoder, check_tensors
from fairseq_mtmoe.backbones.bert.key_map import hugging_face_key, our_key
from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError, first_line
from fairseq_mtmoe.io.files import new_folder, read_json, read_text, regular_file

CONFIG, SAFETENSORS, TORCH = "config.json", "model.safetensors", "pytorch_model.bin"


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
    state, left_out = _renamed(folder, _read_weights(folder))
    config = read_config(sizes, has_pooler="pooler.weight" in state)
    check_tensors(folder, config, state, hugging_face_key)
    return Imported(PretrainedEncoder(config, _read_tokenizer(folder), state), tuple(left_out))


def write_folder(encoder: PretrainedEncoder, folder: Path) -> None:
    """Write the folder, completely or not at all, so that `transformers` loads it.

    Raises:
        UserError: there is something in its place, it cannot be written, or `safetensors` is not installed.
    """
    save = _safetensors("written").save
    with new_folder(folder) as partial:
        config = json.dumps(encoder.config.for_hugging_face(), indent=2) + "\n"
        for name, text in {CONFIG: config, **encoder.tokenizer}.items():
            (partial / name).write_bytes(text.encode("utf-8"))
        state = {hugging_face_key(name): value.contiguous() for name, value in encoder.state.items()}
        (partial / SAFETENSORS).write_bytes(save(state, metadata={"format": "pt"}))


def _read_tokenizer(folder: Path) -> dict[str, str]:
    tokenizer = {name: read_text(folder / name) for name in TOKENIZER_FILES if (folder / name).exists()}
    if not any(name in tokenizer for name in VOCABULARIES):
        raise UserError(f"`{folder}` must have a tokenizer ({' or '.join(VOCABULARIES)}), but has none.")
    return tokenizer


def _read_weights(folder: Path) -> dict[str, Any]:
    """The tensors of a folder by Hugging Face's names: of the first kind of file that is there."""
    readers: Mapping[str, Callable[[Path], dict[str, Any]]] = {SAFETENSORS: _read_safetensors, TORCH: file_io.load}  # type: ignore[dict-item]
    for name, read in readers.items():
        index = folder / f"{name}.index.json"
        if (folder / name).exists():
            return read(folder / name)
        if index.exists():
            return {key: value for part in _parts(index) for key, value in read(part).items()}
    raise UserError(f"`{folder}` must have the weights of an encoder ({' or '.join(readers)}), but has none.")


def _parts(index: Path) -> list[Path]:
    """The files that an index names, which lie beside it."""
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    names = set(places.values()) if isinstance(places, dict) and _are_names(places.values()) else set()
    if not names:
        raise UserError(f"`{index}` must name files beside it as `weight_map`, but does not.")
    return [index.with_name(name) for name in sorted(names)]


def _are_names(values: Any) -> bool:
    return all(isinstance(value, str) and Path(value).name == value for value in values)


def _read_safetensors(path: Path) -> dict[str, Any]:
    regular_file(path, "a file of safetensors")
    safetensors = _safetensors("read")
    try:
        tensors: dict[str, Any] = safetensors.load_file(path)
    except Exception as error:  # whatever damaged bytes lead the library to
        raise UserError(
            f"`{path}` must be a file of safetensors, but cannot be read as one: {first_line(error)[:200]}."
        ) from error
    return tensors


def _safetensors(done: str) -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise UserError(
            f"`safetensors` must be installed for its files to be {done}, but is not: `pip install safetensors`."
        ) from error
    return safetensors.torch


def _renamed(folder: Path, tensors: Mapping[str, Any]) -> tuple[dict[str, Tensor], list[str]]:
    """The encoder's state, and what is no part of it."""
    state: dict[str, Tensor] = {}
    left_out = []
    for name, value in tensors.items():
        try:
            key = our_key(name)
        except KeyError as error:
            raise UserError(f"`{folder}` must hold a BERT or RoBERTa, but neither has the tensor `{name}`.") from error
        if key is None:
            left_out.append(name)
            continue
        if key in state or not (torch.is_tensor(value) and value.is_floating_point()):
            raise UserError(f"`{name}` in `{folder}` must be a tensor of numbers that is there once, but is not.")
        state[key] = value.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    return state, left_out
