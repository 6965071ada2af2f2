"""Named sizes of models, which fairseq calls architectures, and sizes that must be a pretrained model's."""

import json
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from fairseq.models import (
    ARCH_CONFIG_REGISTRY,
    ARCH_MODEL_INV_REGISTRY,
    ARCH_MODEL_NAME_REGISTRY,
    register_model_architecture,
)

from fairseq_mtmoe.errors import UserError

Architecture = Callable[[Any], None]  # sets options that are not given


def set_defaults(args: Any, **values: Any) -> None:
    """Set the options that have no value yet."""
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def architecture_of(config: Any, fields: Mapping[str, str]) -> Architecture:
    """An architecture with the sizes of a `config`; `fields` names them by fairseq's options."""
    return lambda args: set_defaults(args, **{option: getattr(config, name) for option, name in fields.items()})


def register_sizes(model_name: str, sizes: Mapping[str, Architecture]) -> None:
    """Register every `model_name_SIZE`; fairseq registers `model_name` itself, with the options' defaults."""
    for suffix, size in sizes.items():
        register_model_architecture(model_name, f"{model_name}_{suffix}")(size)


def noted_sizes(cfg: Any, option: str, fields: Mapping[str, str], kind: str, task: str) -> dict[str, Any]:
    """The sizes of a pretrained model that `task` noted as JSON in an option; UserError where options have others."""
    if not getattr(cfg, option):
        raise UserError(f"`--task` must be one that gives a model its {kind}, such as `--task {task}`, but gives none.")
    known: dict[str, Any] = json.loads(getattr(cfg, option))
    for name, field in fields.items():
        given = getattr(cfg, name)
        if given is not None and given != known[field]:
            hint = _architectures_with(known, fields, kind, getattr(cfg, "_name", None))
            raise UserError(
                f"`--{name.replace('_', '-')}` must be {known[field]}, as in the pretrained {kind}, but is {given} "
                f"instead{hint}."
            )
    return known


def _architectures_with(known: Mapping[str, Any], fields: Mapping[str, str], kind: str, arch: str | None) -> str:
    """Which architectures of the model behind `arch` have these sizes, as the end of a sentence."""
    model = ARCH_MODEL_NAME_REGISTRY.get(arch)
    if model in (None, arch):  # it takes any sizes already
        return ""
    any_size = f"`--arch {model}` takes the {kind}'s sizes, whatever they are"
    for other in ARCH_MODEL_INV_REGISTRY[model]:
        ARCH_CONFIG_REGISTRY[other](found := Namespace())
        if all(getattr(found, option, None) == known[field] for option, field in fields.items()):
            return f": `--arch {other}` has its sizes, and {any_size}"
    return f": {any_size}"
