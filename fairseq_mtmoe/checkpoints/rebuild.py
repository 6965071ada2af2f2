"""The model that a checkpoint describes: of known kinds alone, which do no more than they say.

Some of fairseq's models evaluate a file's options, or open what they name. A file may therefore choose the models of
this package and stock translation transformers alone, whose code was read for that; a user can trust others by name.
"""

import dataclasses
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints.file_io import readable
from fairseq_mtmoe.checkpoints.sharding import State, has_experts
from fairseq_mtmoe.checkpoints.validation import leaves
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.typed import shown
from fairseq_mtmoe.moe.parallel.placement import whole_models
from fairseq_mtmoe.protocols import BecomesSparse

TRUST = "MTMOE_TRUST"  # the environment variable with names that a user adds
OURS = "fairseq_mtmoe."
KNOWN = {
    "model": {"transformer", "transformer_align"},
    "task": {"translation", "translation_multi_simple_epoch"},
    "criterion": {
        "adaptive_loss", "cross_entropy", "label_smoothed_cross_entropy", "label_smoothed_cross_entropy_with_alignment",
    },
    "bpe": {"byte_bpe", "bytes", "characters", "fastbpe", "sentencepiece", "subword_nmt"},
    "tokenizer": {"moses", "nltk", "space"},
}  # fmt: skip
EVERYTHING = tuple(KNOWN)
_SIZES = ("layers", "dim", "experts", "heads")


def check(path: str | Path, state: State, kinds: Sequence[str]) -> None:
    """Refuse options of these kinds that are not known to be safe, nor trusted, or too large; forget paths in them."""
    for kind in kinds:
        check_name(path, state, kind)
    if "model" in kinds:
        _check_sizes(path, state)
    _forget_paths([state.get("cfg"), state.get("args")])


def check_name(path: str | Path, state: State, kind: str) -> None:
    """Refuse a checkpoint that chooses something of a kind that is neither known nor trusted (UserError)."""
    # fairseq takes the first of these that it finds, which is another one in different functions.
    named_by = ("_name", "arch") if kind == "model" else ("_name", kind)
    names = _names(state.get("args"), named_by[1:]) + _names(plain(state.get("cfg")).get(kind), named_by)
    if kind == "model" and not names:
        raise UserError(f"`{path}` must name the model that it is of, but does not.")
    trusted = {name.strip() for name in os.environ.get(TRUST, "").split(",")}
    for name in names:
        if not isinstance(name, str) or not (_is_known(kind, name) or name in trusted):
            raise UserError(
                f"`{path}` must be of a {kind} that is known to execute nothing of a file, but is of {name!r}; where "
                f"you trust whoever made the file, set the environment variable `{TRUST}={name}`."
            )


def _check_sizes(path: str | Path, state: State) -> None:
    """Refuse a model with a size that is larger than all weights together: damage that would take hours to build."""
    held = sum(value.numel() for value in (state.get("model") or {}).values())
    for name, value in leaves([plain(state.get("cfg")).get("model"), state.get("args")]):
        if name.endswith(_SIZES) and isinstance(value, int) and value > held:
            raise UserError(
                f"`{path}` must hold the weights of the model that it describes, but that one has {shown(value)} as "
                f"`{name}`, and the file {held} numbers."
            )


def plain(options: Any) -> dict[str, Any]:
    """Options of any of fairseq's kinds as a dictionary; empty where they are none."""
    from omegaconf import OmegaConf

    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options)
    elif is_dataclass(options) or isinstance(options, Namespace):
        options = vars(options)
    return options if isinstance(options, dict) else {}


def _names(options: Any, keys: tuple[str, ...]) -> list[Any]:
    if options is not None and not isinstance(options, dict | Namespace):
        return [options]
    return [value for key in keys if (value := plain(options).get(key)) is not None]


def _is_known(kind: str, name: str) -> bool:
    """Whether this is ours, or stock and known; a model also by the name of one of its architectures."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    base = ARCH_MODEL_NAME_REGISTRY.get(name, name) if kind == "model" else name
    registered = {"model": MODEL_REGISTRY, "task": TASK_REGISTRY}.get(kind) or REGISTRIES[kind]["registry"]
    return base in KNOWN[kind] or getattr(registered.get(base), "__module__", "").startswith(OURS)


def _forget_paths(options: Any) -> None:
    if isinstance(options, Namespace):
        options = vars(options)
    for key, value in options.items() if isinstance(options, dict) else enumerate(options):
        if isinstance(key, str) and key.endswith("embed_path"):
            options[key] = None
        elif isinstance(value, dict | list | Namespace):
            _forget_paths(value)


def model_options(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of a checkpoint's model by name; None where it has none of fairseq 0.12 or later."""
    return plain((checkpoint.get("cfg") or {}).get("model")) or None


def configuration(kind: type, options: Mapping[str, Any]) -> Any:
    """A model's dataclass with those of the options that it knows."""
    names = {field.name for field in dataclasses.fields(kind)} - {"_name"}
    return kind(**{name: value for name, value in options.items() if name in names})


def stand_in_task(weights: Mapping[str, Tensor], more_symbols: int = 0) -> SimpleNamespace:
    """What `build_model` wants of a task: dictionaries `more_symbols` larger than the embeddings, one for equals."""
    if "decoder.embed_tokens.weight" not in weights:
        return SimpleNamespace(pretrained=None)
    from fairseq.data import Dictionary

    def sized(count: int) -> Dictionary:
        dictionary = Dictionary()
        for index in range(len(dictionary), count):
            dictionary.add_symbol(f"symbol{index}")
        return dictionary

    source, target = (len(weights[f"{side}.embed_tokens.weight"]) + more_symbols for side in ("encoder", "decoder"))
    dictionary = sized(source)
    return SimpleNamespace(
        source_dictionary=dictionary, target_dictionary=dictionary if source == target else sized(target)
    )


def without_memory(path: Path, state: State, options: Mapping[str, Any], more_symbols: int = 0) -> nn.Module:
    """The model of a checkpoint that was checked, whose tensors have names and shapes alone.

    options: of its model, or others in their place. more_symbols: by which its vocabularies are larger.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    name = ARCH_MODEL_NAME_REGISTRY.get(options["_name"], options["_name"])
    cfg = configuration(MODEL_DATACLASS_REGISTRY[name], options)
    with readable(str(path)), torch.device("meta"), whole_models():
        model: nn.Module = MODEL_REGISTRY[name].build_model(cfg, stand_in_task(state["model"], more_symbols))
        if has_experts(state) and isinstance(model, BecomesSparse) and model.is_dense:
            model.sparsify()
    return model
