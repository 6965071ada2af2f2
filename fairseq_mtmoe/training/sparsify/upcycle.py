"""A sparse checkpoint from a dense one of this plugin or of stock fairseq.

In a run, `--dense-updates` makes the same.
"""

import dataclasses
import json
from typing import Any

import torch
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from torch import nn

from fairseq_mtmoe.checkpoints.key_maps import (
    AVERAGES,
    ENCODER_EMBEDDINGS,
    GATE_RATE,
    MOE,
    without_best,
)
from fairseq_mtmoe.checkpoints.optimizer_state import OptimizerState, shapes_of, trained_parameters
from fairseq_mtmoe.checkpoints.rebuild import configuration, model_options, stand_in_task
from fairseq_mtmoe.core.errors import UserError, flag, raise_invalid
from fairseq_mtmoe.slots.sparse_model import SparseModel
from fairseq_mtmoe.training.sparsify.in_training import averaged_values, sparsify_with_state


def sparse_models() -> dict[str, type]:
    """Return the option dataclass of each registered model that can become sparse."""
    return {
        name: MODEL_DATACLASS_REGISTRY[name]
        for name, kind in MODEL_REGISTRY.items()
        if issubclass(kind, SparseModel)
    }


def upcycle(
    model_name: str, checkpoint: dict[str, Any], options: dict[str, Any], seed: int = 1
) -> dict[str, Any]:
    """Return a sparse checkpoint: experts are copies of their feed-forward layers.

    Args:
        model_name: the sparse model, such as `base_moe`.
        checkpoint: a dense transformer's, checked by `rebuild.check` (UserError: no dense
            transformer).
        options: the sparse model's (UserError: unknown, out of range); others are the checkpoint's
            or defaults.
        seed: of the gates' initial values.
    """
    _check_options(model_name, options)
    dense_options = model_options(checkpoint)
    if dense_options is None or ENCODER_EMBEDDINGS not in checkpoint.get("model", {}):
        raise UserError(
            "The checkpoint to upcycle does not contain a transformer of fairseq 0.12 or later."
        )
    names = (
        options.get("task_names")
        or dense_options.get("task_names")
        or _task_names(dense_options, checkpoint)
    )
    options = {**options, "task_names": names, "dense_updates": 1}
    cfg = configuration(MODEL_DATACLASS_REGISTRY[model_name], {**dense_options, **options})
    weights = checkpoint["model"]
    if any(MOE in key for key in weights):
        raise UserError(
            "The checkpoint to upcycle has experts already: give the checkpoint of a dense model."
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = MODEL_REGISTRY[model_name].build_model(cfg, stand_in_task(weights))
        model.load_state_dict(dict(weights))
        moments = _moments(checkpoint.get("last_optimizer_state"), model)
        sparse_state = sparsify_with_state(model, moments or OptimizerState())
    sparse = dict(checkpoint)
    cfg.dense_updates = 0
    sparse["cfg"] = {**checkpoint["cfg"], "model": {**dataclasses.asdict(cfg), "_name": model_name}}
    sparse["model"] = model.state_dict()
    extra = without_best(checkpoint.get("extra_state") or {})
    averages = {
        name: dict(averaged_values(model, extra[name])) for name in AVERAGES if extra.get(name)
    }
    sparse["extra_state"] = {**extra, **averages, GATE_RATE: {}}  # gates get the options' rate
    saved = sparse.pop("last_optimizer_state", None)
    if moments is not None:
        sparse["last_optimizer_state"] = sparse_state.to_saved(
            saved, shapes_of(trained_parameters(model)), flat=False
        )
    return sparse


def _check_options(model_name: str, options: dict[str, Any]) -> None:
    models = sparse_models()
    if model_name not in models:
        raise_invalid("--model", f"one of {', '.join(models)}", model_name)
    fields = {field.name for field in dataclasses.fields(models[model_name])}
    for name in options.keys() - fields:
        option = flag(name)
        raise UserError(
            f"`{option}` is no option of {model_name}; `mtmoe options {model_name}` lists them."
        )


def _task_names(options: dict[str, Any], checkpoint: dict[str, Any]) -> str | None:
    """Return tasks of an encoder's heads, or languages or pairs of a translator."""
    if options.get("heads"):
        return ",".join(json.loads(options["heads"]))
    state = checkpoint.get("task_state") or {}
    names = state.get("lang_pairs" if state.get("task_ids") == "pair" else "langs")
    return ",".join(names) if names else None


def _moments(saved: dict[str, Any] | None, model: nn.Module) -> OptimizerState | None:
    """Return the saved moments by parameter name; None without one for each parameter."""
    parameters = shapes_of(trained_parameters(model))
    entries = (saved or {}).get("state", {})
    if len(entries) != len(parameters):
        return None
    moments = OptimizerState({name: entries[index] for index, (name, _) in enumerate(parameters)})
    return moments if moments.misfit(parameters) is None else None
