"""The classes that this package registers with fairseq, with their options."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fairseq_mtmoe.core.errors import flag, raise_invalid


@dataclass(frozen=True)
class Option:
    """Command-line option, with its default for one architecture."""

    flag: str
    default: Any
    meaning: str
    # No class of fairseq's of this kind (architecture, task, …) has an option of this name.
    is_ours: bool


@dataclass(frozen=True)
class Choice:
    """Class that `--KIND NAME` chooses; one class may have several names."""

    name: str
    kind: str
    registered: Any

    def options(self) -> list[Option]:
        """Return the class's options, those first that fairseq does not have."""
        fairseq_names = _fairseq_names(self.kind)
        defaults = _defaults(self)
        options = [
            Option(flag_of(name), defaults.get(name), meaning, name not in fairseq_names)
            for name, meaning in _meanings(self.registered).items()
        ]
        return sorted(options, key=lambda option: not option.is_ours)

    def new_options(self) -> list[Option]:
        """Return the options that fairseq does not have."""
        return [option for option in self.options() if option.is_ours]


def choices() -> list[Choice]:
    """Return this package's architectures, tasks, criterions and optimizers."""
    return [
        Choice(name, kind, registered)
        for kind, registry in _registries().items()
        for name, registered in registry.items()
        if _is_ours(registered)
    ]


def choices_by_class() -> list[list[Choice]]:
    """Return the choices grouped by class, in order of first appearance."""
    groups: dict[tuple[str, Any], list[Choice]] = {}
    for choice in choices():
        groups.setdefault((choice.kind, choice.registered), []).append(choice)
    return list(groups.values())


def choice_of(name: str) -> Choice:
    """Return the choice with this name (UserError: unknown name)."""
    by_name = {choice.name: choice for choice in choices()}
    if name not in by_name:
        raise_invalid("NAME", f"one of {', '.join(by_name)}", name)
    return by_name[name]


def flag_of(name: str) -> str:
    """Return an option as typed on the command line."""
    return "DATA" if name == "data" else flag(name)


def shown(default: Any) -> str:
    """Return a default as typed on the command line; empty for None."""
    if default is None:
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"({', '.join(map(str, default))})" if isinstance(default, list) else str(default)


@cache
def _registries() -> dict[str, Mapping[str, type]]:
    """Return fairseq's registries by kind; each maps names for `--KIND` to classes."""
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    from fairseq_mtmoe import register

    register()
    others = {
        kind: REGISTRIES[kind]["registry"] for kind in ("criterion", "optimizer", "lr_scheduler")
    }
    return {"arch": ARCH_MODEL_REGISTRY, "task": TASK_REGISTRY, **others}


def _is_ours(registered: type) -> bool:
    return registered.__module__.partition(".")[0] == __name__.partition(".")[0]


@cache
def _meanings(registered: Any) -> dict[str, str]:
    """Return the help of a class's options, but not of those that others fill in."""
    parser = argparse.ArgumentParser(add_help=False)
    registered.add_args(parser)
    return {
        action.dest: action.help or ""
        for action in parser._actions
        if action.help != argparse.SUPPRESS
    }


@cache
def _fairseq_names(kind: str) -> set[str]:
    """Return the names of options of fairseq's own classes of this kind."""
    names = set[str]()
    for registered in _registries()[kind].values():
        if not _is_ours(registered):
            names |= _meanings(registered).keys()
    return names


def _defaults(choice: Choice) -> Any:
    """Return all options' values if the command line gives only this choice."""
    from fairseq.models import ARCH_CONFIG_REGISTRY
    from omegaconf import OmegaConf

    values: Any = OmegaConf.to_container(
        OmegaConf.structured(choice.registered.__dataclass), enum_to_str=True
    )
    sizes = argparse.Namespace()
    if choice.kind == "arch":
        ARCH_CONFIG_REGISTRY[choice.name](sizes)
    # A default such as `${model.encoder_embed_dim}` is another option's value.
    return OmegaConf.create({"model": {**values, **vars(sizes)}})["model"]
