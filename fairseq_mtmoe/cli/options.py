"""`mtmoe options`: what can be chosen on fairseq's command line when the plugin is loaded, with the defaults."""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairseq_mtmoe.errors import must_be

ARCHITECTURES = tuple(f"base_{kind}{size}" for kind in ("moe", "dense") for size in ("", "_tiny", "_wmt15", "_ml50"))
CHOICES = {
    **dict.fromkeys(ARCHITECTURES, "arch"),
    "translation_heated": "task",
    "moe_label_smoothed_cross_entropy": "criterion",
    "fused_adam": "optimizer",
}


@dataclass(frozen=True)
class Option:
    """An option of the command line.

    Args:
        flag: `--num-experts`.
        default: with the architecture that was asked for.
        meaning: as in `--help`.
        is_ours: whether fairseq has no option of this name at the same place.
    """

    flag: str
    default: Any
    meaning: str
    is_ours: bool


@click.command("options")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the options of NAME, an architecture, task, criterion or optimizer of this plugin; without NAME, list these.

    Each option has its meaning, its default (of that architecture), and whether it is this plugin's or fairseq's.
    """
    if name is not None and name not in CHOICES:
        must_be("NAME", f"one of {', '.join(CHOICES)}", name)
    from fairseq_mtmoe import register

    logging.disable(logging.INFO)  # of what is imported from here on
    try:
        register()
        table = _overview() if name is None else _table(name, options_of(name))
    finally:
        logging.disable(logging.NOTSET)
    # In a file or a pipe, lines are as long as they must be.
    console = Console() if Console().is_terminal else Console(width=150)
    console.print(table)
    if name is None:
        console.print("`mtmoe options NAME` lists the options of each.")


def options_of(name: str) -> list[Option]:
    """The options of an architecture, task, criterion or optimizer of ours: first those that fairseq does not have."""
    kind = CHOICES[name]
    fields, theirs = _fields(name)
    values = _defaults(name)["model" if kind == "arch" else kind]
    found = [
        Option(_flag(field.name), values.get(field.name), str(field.metadata["help"]), field.name not in theirs)
        for field in fields
        if _is_option(field)
    ]
    return sorted(found, key=lambda option: not option.is_ours)


def _is_option(field: dataclasses.Field[Any]) -> bool:
    return bool(field.metadata.get("help"))  # without help it is an option of another part of fairseq's configuration


def _flag(name: str) -> str:
    return "DATA" if name == "data" else "--" + name.replace("_", "-")


def _fields(name: str) -> tuple[Iterable[dataclasses.Field[Any]], set[str]]:
    """The fields of what has this name, and the names of those that its counterpart in fairseq has."""
    from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterionConfig
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
    from fairseq.optim.adam import FairseqAdamConfig
    from fairseq.tasks.translation_multi_simple_epoch import TranslationMultiSimpleEpochTask

    from fairseq_mtmoe.criterions.moe_label_smoothed_cross_entropy import MoELabelSmoothedCrossEntropyConfig
    from fairseq_mtmoe.optim.fused_adam import FusedAdamConfig
    from fairseq_mtmoe.options.transformer import FlatTransformerConfig
    from fairseq_mtmoe.tasks.translation.config import TranslationHeatedConfig

    kind = CHOICES[name]
    if kind == "task":
        parser = argparse.ArgumentParser(add_help=False)
        TranslationMultiSimpleEpochTask.add_args(parser)
        return dataclasses.fields(TranslationHeatedConfig), {action.dest for action in parser._actions}
    ours, theirs = {
        "criterion": (MoELabelSmoothedCrossEntropyConfig, LabelSmoothedCrossEntropyCriterionConfig),
        "optimizer": (FusedAdamConfig, FairseqAdamConfig),
        "arch": (MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(name)), FlatTransformerConfig),
    }[kind]
    return dataclasses.fields(ours), {field.name for field in dataclasses.fields(theirs)}


def _defaults(name: str) -> dict[str, dict[str, Any]]:
    """What fairseq's command line makes of nothing but this choice: every option's value, by group."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from omegaconf import OmegaConf

    chosen = {"arch": "base_moe", **{kind: known for known, kind in CHOICES.items() if kind != "arch"}}
    chosen[CHOICES[name]] = name
    arguments = ["", *(part for kind, value in chosen.items() for part in (f"--{kind}", value))]
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))
    values = {group: cfg[group] for group in ("model", "task", "criterion", "optimizer")}
    values["task"].data = None
    plain = OmegaConf.to_container(OmegaConf.create(values), resolve=True, enum_to_str=True)
    return cast(dict[str, dict[str, Any]], plain)


def shown(default: Any) -> str:
    """A default as it is typed; nothing where there is none."""
    if default is None or isinstance(default, bool):
        return {None: "", False: "off", True: "on"}[default]
    return f"({', '.join(map(str, default))})" if isinstance(default, list) else str(default)


def _table(name: str, options: list[Option]) -> Table:
    table = Table("option", "default", "meaning", "of", title=f"--{CHOICES[name]} {name}", title_justify="left")
    for option in options:
        whose = "fairseq_mtmoe" if option.is_ours else "fairseq"
        table.add_row(option.flag, escape(shown(option.default)), escape(option.meaning), whose)
    table.columns[0].no_wrap = True
    return table


def _overview() -> Table:
    table = Table(
        "choice", "names", "options that fairseq does not have", title="fairseq_mtmoe adds", title_justify="left"
    )
    own = {
        "--arch": ("base_moe", ", ".join(ARCHITECTURES)),
        **{f"--{kind}": (name, name) for name, kind in CHOICES.items() if kind != "arch"},
    }
    for choice, (example, names) in own.items():
        fields, theirs = _fields(example)
        flags = ", ".join(_flag(field.name) for field in fields if _is_option(field) and field.name not in theirs)
        table.add_row(choice, names, flags or "none: those of fairseq's adam")
    return table
