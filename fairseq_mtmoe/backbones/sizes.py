"""Named sizes (fairseq's architectures), and checks of pretrained sizes."""

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

from fairseq_mtmoe.errors import UserError, flag

Architecture = Callable[[Any], None]  # sets the options that have no value


def set_defaults(args: Any, **values: Any) -> None:
    """Set the options that have no value yet."""
    for name, value in values.items():
        if getattr(args, name, None) is None:
            setattr(args, name, value)


def architecture_of(config: Any, fields: Mapping[str, str]) -> Architecture:
    """Return an architecture with the sizes of a `config`.

    `fields` maps fairseq's options to its fields.
    """
    return lambda args: set_defaults(args, **{option: getattr(config, name) for option, name in fields.items()})


def register_sizes(model_name: str, sizes: Mapping[str, Architecture]) -> None:
    """Register each `model_name_SIZE`.

    Fairseq registers `model_name`, with the options' defaults.
    """
    for suffix, size in sizes.items():
        register_model_architecture(model_name, f"{model_name}_{suffix}")(size)


def noted_sizes(cfg: Any, option: str, fields: Mapping[str, str], kind: str, task: str) -> dict[str, Any]:
    """Return the sizes that a task stored as JSON in `option`.

    Raises `UserError`: none, or options contradict them.
    """
    if not getattr(cfg, option):
        raise UserError(f"`--task` must provide the model's {kind}, as `--task {task}` does, but provides none.")
    known: dict[str, Any] = json.loads(getattr(cfg, option))
    for name, field in fields.items():
        given = getattr(cfg, name)
        if given is not None and given != known[field]:
            hint = _architectures_with(known, fields, kind, getattr(cfg, "_name", None))
            raise UserError(
                f"`{flag(name)}` must be {known[field]}, as in the pretrained {kind}, but is {given} instead{hint}."
            )
    return known


def _architectures_with(known: Mapping[str, Any], fields: Mapping[str, str], kind: str, arch: str | None) -> str:
    """Return a hint, the end of a sentence, about architectures with these sizes."""
    model = ARCH_MODEL_NAME_REGISTRY.get(arch)
    if model in (None, arch):  # it takes any sizes already
        return ""
    any_size = f"`--arch {model}` takes the sizes of any {kind}"
    for other in ARCH_MODEL_INV_REGISTRY[model]:
        ARCH_CONFIG_REGISTRY[other](found := Namespace())
        if all(getattr(found, option, None) == known[field] for option, field in fields.items()):
            return f": `--arch {other}` has its sizes, and {any_size}"
    return f": {any_size}"
