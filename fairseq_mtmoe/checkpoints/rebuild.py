"""Build the model that a checkpoint describes, if its kind is known to be safe.

Some of fairseq's models evaluate a file's options, or open files that they name. So a file may only
choose models of this package and stock translation transformers, whose code was reviewed; a user
can trust others by name.
"""

import dataclasses
import json
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
from fairseq_mtmoe.checkpoints.key_maps import DECODER_EMBEDDINGS, EMBEDDINGS
from fairseq_mtmoe.checkpoints.sharding import State, count_experts, has_experts
from fairseq_mtmoe.checkpoints.validation import leaves
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.protocols import training_model
from fairseq_mtmoe.core.typed import shown
from fairseq_mtmoe.moe.parallel.placement import whole_models

TRUST = "MTMOE_TRUST"  # environment variable with names that a user trusts
OURS = "fairseq_mtmoe."
KNOWN = {
    "model": {"transformer", "transformer_align"},
    "task": {"translation", "translation_multi_simple_epoch"},
    "criterion": {
        "adaptive_loss",
        "cross_entropy",
        "label_smoothed_cross_entropy",
        "label_smoothed_cross_entropy_with_alignment",
    },
    "bpe": {"byte_bpe", "bytes", "characters", "fastbpe", "sentencepiece", "subword_nmt"},
    "tokenizer": {"moses", "nltk", "space"},
}
EVERYTHING = tuple(KNOWN)
# Endings of the names of sizes that are a dimension of a weight
_SIZES = ("layers", "experts", "heads")
# Those of weights whose other dimension is the model's width
_BESIDE_WIDTH = (
    "dim",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "d_ff",
    "max_position_embeddings",
)
_WIDTHS = ("encoder_embed_dim", "decoder_embed_dim", "hidden_size", "d_model")
_BYTES = 4  # of a number


def check(path: str | Path, state: State, kinds: Sequence[str]) -> None:
    """Refuse unsafe or too large options of these kinds; remove paths in them.

    Options are safe if they are known or trusted (UserError).
    """
    for kind in kinds:
        check_name(path, state, kind)
    if "model" in kinds:
        _check_sizes(path, state)
    _forget_paths([state.get("cfg"), state.get("args")])


def check_name(path: str | Path, state: State, kind: str) -> None:
    """Refuse a checkpoint that chooses an unknown and untrusted name (UserError)."""
    # fairseq takes the first of these that it finds; the order differs between its functions.
    named_by = ("_name", "arch") if kind == "model" else ("_name", kind)
    names = _names(state.get("args"), named_by[1:])
    names += _names(plain(state.get("cfg")).get(kind), named_by)
    if kind == "model" and not names:
        raise UserError(f"`{path}` must be the checkpoint of a model, but names no model.")
    trusted = {name.strip() for name in os.environ.get(TRUST, "").split(",")}
    for name in names:
        if not isinstance(name, str) or not (_is_known(kind, name) or name in trusted):
            raise UserError(
                f"`{path}` must have a {kind} that is known to run no code of a file, but has "
                f"{name!r}; if you trust the file's author, set the environment variable "
                f"`{TRUST}={name}`."
            )


def _check_sizes(path: str | Path, state: State) -> None:
    """Refuse a model with a size above its number of weights: damage builds for hours."""
    model = plain(plain(state.get("cfg")).get("model"))
    sizes = leaves(
        [model, state.get("args"), *(_in_json(model.get(name)) for name in ("encoder", "t5"))]
    )
    check_sizes(path, list(sizes), state.get("model") or {}, count_experts(state))


def check_sizes(
    path: str | Path,
    sizes: Sequence[tuple[str, Any]],
    weights: Mapping[str, Tensor],
    num_experts: int = 0,
) -> None:
    """Refuse named sizes that need more memory than a file's weights (UserError).

    num_experts: of the file; 0: it is not known.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    numbers = [(name, value) for name, value in sizes if isinstance(value, int)]
    width = max((value for name, value in numbers if name in _WIDTHS), default=1)
    held = sum(value.numel() for value in weights.values())
    for name, value in numbers:
        needed = value
        most = held
        # Sinusoids are computed and lie in no file; twice as much builds them.
        if name.endswith("positions"):
            if value * width * _BYTES * 2 > memory:
                raise UserError(
                    f"`{path}` has a model that does not fit into this machine's memory of "
                    f"{memory / 2**30:,.1f} GiB: its `{name}` is {shown(value)}."
                )
            continue
        if name.endswith(_BESIDE_WIDTH):
            needed = value * width
        elif name == "num_experts" and num_experts:
            most = num_experts
        elif not name.endswith(_SIZES):
            continue
        is_negative = value < 1 and name.endswith("attention_heads")
        if needed > most or is_negative:
            raise UserError(
                f"`{path}` must hold the weights of the model that it describes, but `{name}` is "
                f"{shown(value)} and the file has {held} numbers."
            )


def _in_json(text: Any) -> Any:
    """Return the sizes that an option has as JSON; None if it has none."""
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


def plain(options: Any) -> dict[str, Any]:
    """Return fairseq's options of any kind as a dictionary; empty if there are none."""
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
    """Return whether the name is ours, or stock and known; or an architecture's."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    base = ARCH_MODEL_NAME_REGISTRY.get(name, name) if kind == "model" else name
    registered = {"model": MODEL_REGISTRY, "task": TASK_REGISTRY}.get(kind)
    registered = registered or REGISTRIES[kind]["registry"]
    return base in KNOWN[kind] or getattr(registered.get(base), "__module__", "").startswith(OURS)


def _forget_paths(options: Any) -> None:
    if isinstance(options, Namespace):
        options = vars(options)
    items = options.items() if isinstance(options, dict) else enumerate(options)
    for key, value in items:
        if isinstance(key, str) and key.endswith("embed_path"):
            options[key] = None
        elif isinstance(value, dict | list | Namespace):
            _forget_paths(value)


def model_options(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a checkpoint's model options by name; None before fairseq 0.12."""
    return plain((checkpoint.get("cfg") or {}).get("model")) or None


def configuration(kind: type, options: Mapping[str, Any]) -> Any:
    """Return a model's dataclass with the options that it knows."""
    names = {field.name for field in dataclasses.fields(kind)} - {"_name"}
    return kind(**{name: value for name, value in options.items() if name in names})


def stand_in_task(weights: Mapping[str, Tensor], more_symbols: int = 0) -> SimpleNamespace:
    """Return a task for `build_model` with dictionaries as large as the embeddings.

    more_symbols: number of further symbols. Vocabularies of equal size share one dictionary.
    """
    if DECODER_EMBEDDINGS not in weights:
        return SimpleNamespace(pretrained=None)
    from fairseq.data import Dictionary

    def sized(count: int) -> Dictionary:
        dictionary = Dictionary()
        for index in range(len(dictionary), count):
            dictionary.add_symbol(f"symbol{index}")
        return dictionary

    source, target = (len(weights[name]) + more_symbols for name in EMBEDDINGS)
    dictionary = sized(source)
    return SimpleNamespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary if source == target else sized(target),
    )


def sparsify_like(model: Any, state: Mapping[str, Any]) -> None:
    """Give a model experts if it has none and the state to load has some."""
    hooks = training_model(model)
    if hooks.is_dense and has_experts(state):
        hooks.sparsify()


def without_memory(
    path: Path, state: State, options: Mapping[str, Any], more_symbols: int = 0
) -> nn.Module:
    """Return a checked checkpoint's model on the meta device, without weights.

    Args:
        path: of the checkpoint, for errors.
        state: its content.
        options: of its model, or others instead.
        more_symbols: number of symbols by which vocabularies grow.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    name = ARCH_MODEL_NAME_REGISTRY.get(options["_name"], options["_name"])
    cfg = configuration(MODEL_DATACLASS_REGISTRY[name], options)
    with readable(str(path)), torch.device("meta"), whole_models():
        model: nn.Module = MODEL_REGISTRY[name].build_model(
            cfg, stand_in_task(state["model"], more_symbols)
        )
        sparsify_like(model, state)
    return model
