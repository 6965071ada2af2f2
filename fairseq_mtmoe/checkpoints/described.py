"""The model that a checkpoint describes, made without its data: of options, and stand-ins for what a task gives."""

from __future__ import annotations

import dataclasses
from argparse import Namespace
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints import building
from fairseq_mtmoe.checkpoints.states import State, has_experts
from fairseq_mtmoe.moe.parallel.placement import whole_models
from fairseq_mtmoe.protocols import BecomesSparse


def model_options(checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of a checkpoint's model by name; None where it has none of fairseq 0.12 or later."""
    options = (checkpoint.get("cfg") or {}).get("model")
    if isinstance(options, Namespace):
        options = vars(options)
    return options if isinstance(options, dict) else None


def configuration(kind: type, options: Mapping[str, Any]) -> Any:
    """A model's dataclass with those of the options that it knows."""
    names = {field.name for field in dataclasses.fields(kind)} - {"_name"}
    return kind(**{name: value for name, value in options.items() if name in names})


def stand_in_task(weights: Mapping[str, Tensor], more_symbols: int = 0) -> SimpleNamespace:
    """What `build_model` wants of a task: dictionaries of the right sizes, one object where they are shared.

    An encoder with heads has its sizes among its options.

    Args:
        weights: of the model.
        more_symbols: by which both dictionaries are larger.
    """
    if "decoder.embed_tokens.weight" not in weights:
        return SimpleNamespace(pretrained=None)
    from fairseq.data import Dictionary

    def sized(count: int) -> Dictionary:
        dictionary = Dictionary()
        for index in range(len(dictionary), count):
            dictionary.add_symbol(f"symbol{index}")
        return dictionary

    source, target = (len(weights[f"{side}.embed_tokens.weight"]) + more_symbols for side in ("encoder", "decoder"))
    source_dictionary = sized(source)
    return SimpleNamespace(
        source_dictionary=source_dictionary,
        target_dictionary=source_dictionary if source == target else sized(target),
    )


def without_memory(
    source: building.Source, state: State, options: Mapping[str, Any], more_symbols: int = 0
) -> nn.Module:
    """The model of a checkpoint with all its experts, whose tensors have names and shapes alone.

    Args:
        source: the checkpoint, see `building.check`.
        state: of a checkpoint of this package, whole or a shared part.
        options: of its model, or others in their place.
        more_symbols: by which its vocabularies are larger.

    Raises:
        UserError: the options are wrong, or describe a larger model than the checkpoint holds.
    """
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

    name = ARCH_MODEL_NAME_REGISTRY.get(options["_name"], options["_name"])
    cfg = configuration(MODEL_DATACLASS_REGISTRY[name], options)
    with torch.device("meta"), whole_models():
        model: nn.Module = source.build(
            MODEL_REGISTRY[name].build_model, cfg, stand_in_task(state["model"], more_symbols)
        )
        if has_experts(state) and isinstance(model, BecomesSparse) and model.is_dense:
            model.sparsify()
    return model
