"""What folders of Hugging Face's have in common: weights in one file or several, and tensors that must be there.

Nothing in a folder is executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.errors import UserError, first_line
from fairseq_mtmoe.io.files import new_folder, read_json, regular_file

IMPORT_ANEW = "write it anew by `mtmoe import-hf`"  # what to do where a file of such a folder is damaged
CONFIG, SAFETENSORS, TORCH = "config.json", "model.safetensors", "pytorch_model.bin"


@dataclass(frozen=True)
class Additions:
    """What a folder has beside a backbone: more of its `config.json`, tensors by Hugging Face's names, and files."""

    values: Mapping[str, Any]
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


def read_weights(folder: Path) -> dict[str, Any]:
    """The tensors of a folder by Hugging Face's names: of the first kind of file that is there.

    Raises:
        UserError: there is none, or it is damaged.
    """
    readers: Mapping[str, Callable[[Path], dict[str, Any]]] = {SAFETENSORS: _read_safetensors, TORCH: _read_torch}
    for name, read in readers.items():
        index = folder / f"{name}.index.json"
        if (folder / name).exists():
            return read(folder / name)
        if index.exists():
            return {key: value for part in _parts(index) for key, value in read(part).items()}
    raise UserError(f"`{folder}` must have a model's weights ({' or '.join(readers)}), but has none.")


def renamed(
    folder: Path, tensors: Mapping[str, Any], our_key: Callable[[str], str | None], kind: str
) -> tuple[dict[str, Tensor], list[str]]:
    """A model's state in float32, and the names of what is no part of it.

    Args:
        folder: for sentences.
        tensors: by Hugging Face's names.
        our_key: our name of a parameter; None for what is no part of the model, KeyError for what no such model has.
        kind: what the folder should hold.

    Raises:
        UserError: it holds something else.
    """
    state: dict[str, Tensor] = {}
    left_out = []
    for name, value in tensors.items():
        try:
            key = our_key(name)
        except KeyError as error:
            raise UserError(f"`{folder}` must hold a {kind}, which has no tensor `{name}`, but holds one.") from error
        if key is None:
            left_out.append(name)
            continue
        if key in state or not (torch.is_tensor(value) and value.is_floating_point()):
            raise UserError(f"`{name}` in `{folder}` must be a tensor of numbers that is there once, but is not.")
        state[key] = value.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    return state, left_out


def write_model(
    folder: Path,
    config: Mapping[str, Any],
    files: Mapping[str, bytes],
    tensors: Mapping[str, Tensor],
    additions: Iterable[Additions] = (),
) -> None:
    """Write a new folder, completely or not at all.

    Args:
        folder: nothing is there.
        config: of `config.json`.
        files: by their names.
        tensors: by Hugging Face's names.
        additions: which come last and win.

    Raises:
        UserError: there is something in its place, it cannot be written, or `safetensors` is not installed.
    """
    save = _safetensors("written").save
    for more in additions:
        config, files, tensors = {**config, **more.values}, {**files, **more.files}, {**tensors, **more.tensors}
    with new_folder(folder) as partial:
        (partial / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name, content in files.items():
            (partial / name).write_bytes(content)
        state = {name: value.contiguous() for name, value in tensors.items()}
        (partial / SAFETENSORS).write_bytes(save(state, metadata={"format": "pt"}))


def read_imported(path: str | Path) -> dict[str, Any]:
    """The content of a file of `mtmoe import-hf`.

    Raises:
        UserError: the file is missing or damaged, or is a folder, such as what that command reads.
    """
    if Path(path).is_dir():
        raise UserError(
            f"`{path}` must be a file of `mtmoe import-hf`, but is a folder; `mtmoe import-hf {path} OUT` writes the "
            "file of a folder of Hugging Face's."
        )
    return file_io.load(str(path), remedy=IMPORT_ANEW)


def expect_no_checkpoint(path: str | Path, content: Mapping[str, Any]) -> None:
    """Raise the `UserError` that says where the checkpoint of a run belongs, in the place of a pretrained model."""
    if "cfg" in content:
        raise UserError(
            f"`{path}` must be a file of `mtmoe import-hf`, but is a checkpoint, with which a run begins by "
            "`--finetune-from-model`."
        )


def check_tensors(
    path: str | Path, wanted: Mapping[str, Tensor], state: Mapping[str, Any], name_of: Callable[[str], str] = str
) -> None:
    """Raise the `UserError` that says which tensor `state` lacks, has in another shape, or has beyond those wanted.

    Args:
        path: for sentences.
        wanted: a state with the right shapes.
        state: what was found.
        name_of: what sentences call a parameter.
    """
    for name, like in wanted.items():
        if name not in state:
            raise UserError(f"`{path}` must have a tensor `{name_of(name)}`, but has none.")
        found, shape = state[name], tuple(like.shape)
        if tuple(found.shape) != shape or found.dtype != torch.float32:
            shown = f"{tuple(found.shape)}, {found.dtype}".replace("torch.", "")
            raise UserError(f"`{name_of(name)}` in `{path}` must be {shape}, float32, but is {shown} instead.")
    more = [name for name in state if name not in wanted]
    if more:
        raise UserError(f"`{path}` must have the tensors of its sizes alone, but has `{more[0]}`, too.")


def _parts(index: Path) -> list[Path]:
    """The files that an index names, which lie beside it."""
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    names = set(places.values()) if isinstance(places, dict) and _are_names(places.values()) else set()
    if not names:
        raise UserError(f"`{index}` must name files beside it as `weight_map`, but does not.")
    return [index.with_name(name) for name in sorted(names)]


def _are_names(values: Any) -> bool:
    return all(isinstance(value, str) and value and value == Path(value).name and "\0" not in value for value in values)


def _read_torch(path: Path) -> dict[str, Any]:
    return file_io.load(str(path), remedy="fetch it anew")


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
