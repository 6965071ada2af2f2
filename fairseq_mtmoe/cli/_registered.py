"""The classes that this package registers with fairseq; `tools/reference.py` writes them to `registered.json`."""

import argparse
import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, cast, get_args

from fairseq_mtmoe.cli.options import Choice, Option, Registered, flag_of


def collect() -> Registered:
    """Return this package's architectures, tasks, criterions and optimizers with their options."""
    return Registered([_choice(kind, name) for name, kind in choices().items()], expert_options())


def choices() -> dict[str, str]:
    """Return the registered names of this package with their kinds: `arch`, `task`, `criterion`, …"""
    return {name: kind for kind, known in _registries().items() for name, found in known.items() if _is_ours(found)}


def expert_options() -> list[Option]:
    """Return the options of `mtmoe upcycle`: those of sparse models that dense models lack."""
    from fairseq_mtmoe.options.experts import RunOptions
    from fairseq_mtmoe.options.transformer import FlatTransformerConfig
    from fairseq_mtmoe.sparsify.upcycle import sparse_models

    dense = {field.name for kind in (FlatTransformerConfig, RunOptions) for field in dataclasses.fields(kind)}
    found = {field.name: field for kind in sparse_models().values() for field in dataclasses.fields(kind)}
    return [
        Option(flag_of(name), None, help_of(field), True, type_of(field))
        for name, field in found.items()
        if name not in dense and name != "dense_updates"  # the model is sparse from the start
    ]


def help_of(field: Any) -> str:
    """Return the help of a field's option; empty if hidden."""
    return "" if field.metadata["help"] == argparse.SUPPRESS else str(field.metadata["help"])


def type_of(field: Any) -> str:
    """Return the name of a field's type, `float` of `Optional[float]`."""
    return str(next(iter(get_args(field.type)), field.type).__name__)


def _choice(kind: str, name: str) -> Choice:
    registered = _registries()[kind][name]
    theirs, values, meanings = _names_of_fairseq(kind), _defaults(kind, name), _meanings(registered)
    found = [Option(flag_of(key), values.get(key), meaning, key not in theirs) for key, meaning in meanings.items()]
    options = sorted(found, key=lambda option: not option.is_ours)
    return Choice(name, kind, registered.__name__, options)


@cache
def _registries() -> dict[str, Mapping[str, type]]:
    """Return fairseq's registries by kind; each maps the names for `--KIND NAME` to classes."""
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.registry import REGISTRIES
    from fairseq.tasks import TASK_REGISTRY

    from fairseq_mtmoe import register

    register()
    others = {kind: REGISTRIES[kind]["registry"] for kind in ("criterion", "optimizer", "lr_scheduler")}
    return {"arch": ARCH_MODEL_REGISTRY, "task": TASK_REGISTRY, **others}


def _is_ours(registered: type) -> bool:
    return registered.__module__.partition(".")[0] == __name__.partition(".")[0]


def _meanings(registered: Any) -> dict[str, str]:
    """Return the help of each option of a class, without hidden ones, which a task or model fills in."""
    parser = argparse.ArgumentParser(add_help=False)
    registered.add_args(parser)
    return {action.dest: action.help or "" for action in parser._actions if action.help != argparse.SUPPRESS}


@cache
def _names_of_fairseq(kind: str) -> set[str]:
    """Return the names of options of fairseq's own classes of this kind."""
    theirs = {registered for registered in _registries()[kind].values() if not _is_ours(registered)}
    return {name for registered in theirs for name in _meanings(registered)}


def _defaults(kind: str, name: str) -> dict[str, Any]:
    """Return all options' values if the command line gives only this choice."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from omegaconf import OmegaConf

    arguments = ["", "--arch", "transformer", flag_of(kind), name]  # the last value of an option counts
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))
    values = cfg["model" if kind == "arch" else kind]
    if kind == "task":
        values.data = None
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(values), resolve=True, enum_to_str=True))
