"""Named sizes (fairseq's architectures), and checks of pretrained sizes."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from fairseq.models import ARCH_MODEL_NAME_REGISTRY, register_model_architecture

from fairseq_mtmoe.core.errors import UserError, flag

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
    return lambda args: set_defaults(
        args, **{option: getattr(config, name) for option, name in fields.items()}
    )


def register_sizes(model_name: str, sizes: Mapping[str, Architecture]) -> None:
    """Register each `model_name_SIZE`.

    Fairseq registers `model_name`, with the options' defaults.
    """
    for suffix, size in sizes.items():
        register_model_architecture(model_name, f"{model_name}_{suffix}")(size)


def noted_sizes(
    cfg: Any, option: str, fields: Mapping[str, str], kind: str, task: str
) -> dict[str, Any]:
    """Return the sizes that a task stored as JSON in `option`.

    Raises `UserError`: none, or options contradict them.
    """
    if not getattr(cfg, option):
        raise UserError(
            f"`--task` does not provide the model's {kind}; use `--task {task}` or a similar task."
        )
    sizes: dict[str, Any] = json.loads(getattr(cfg, option))
    arch = getattr(cfg, "_name", None)
    model = ARCH_MODEL_NAME_REGISTRY.get(arch, arch)
    remedy = "" if model == arch else f"; `--arch {model}` takes the sizes of any {kind}"
    for name, field in fields.items():
        value = getattr(cfg, name)
        if value is not None and value != sizes[field]:
            raise UserError(
                f"`{flag(name)}` must be {sizes[field]}, as in the pretrained {kind},"
                f" but is {value} instead{remedy}."
            )
    return sizes
