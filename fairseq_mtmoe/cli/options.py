"""`mtmoe options`: whatever the package has registered with fairseq, with the options and defaults of each."""

import argparse
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairseq_mtmoe.errors import raise_invalid


class Option(NamedTuple):
    """An option of the command line, with its default in the architecture that was asked for."""

    flag: str
    default: Any
    meaning: str
    is_ours: bool  # nothing of fairseq's own of this kind (architecture, task, …) has an option of this name


@click.command("options")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the options of NAME, an architecture, task, criterion or optimizer of this plugin; without NAME, list these.

    Each option has its meaning, its default (of that architecture), and whether it is this plugin's or fairseq's.
    """
    logging.disable(logging.INFO)  # of what is imported from here on
    try:
        table = _overview() if name is None else _table(name, options_of(name))
    finally:
        logging.disable(logging.NOTSET)
    console = Console() if Console().is_terminal else Console(width=150)
    console.print(table)
    if name is None:
        console.print("`mtmoe options NAME` lists the options of each.")


def choices() -> dict[str, str]:
    """The names that this package has registered, each with what it is: `arch`, `task`, `criterion`, `optimizer`, …"""
    return {name: kind for kind, known in _registries().items() for name, found in known.items() if _is_ours(found)}


def options_of(name: str) -> list[Option]:
    """The options of one of `choices()` (UserError: it is none), first those that fairseq does not have."""
    known = choices()
    if name not in known:
        raise_invalid("NAME", f"one of {', '.join(known)}", name)
    kind = known[name]
    theirs, values, meanings = _names_of_fairseq(kind), _defaults(kind, name), _meanings(_registries()[kind][name])
    found = [Option(_flag(key), values.get(key), meaning, key not in theirs) for key, meaning in meanings.items()]
    return sorted(found, key=lambda option: not option.is_ours)


def _registries() -> dict[str, Mapping[str, type]]:
    """What can be chosen by `--KIND NAME`: the class behind each name, by kind."""
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
    """What each option of a registered class means, as `--help` says it; what a task or model fills in is hidden."""
    parser = argparse.ArgumentParser(add_help=False)
    registered.add_args(parser)
    return {action.dest: action.help or "" for action in parser._actions if action.help != argparse.SUPPRESS}


def _names_of_fairseq(kind: str) -> set[str]:
    """The options that fairseq's own architectures, tasks, … have."""
    theirs = {registered for registered in _registries()[kind].values() if not _is_ours(registered)}
    return {name for registered in theirs for name in _meanings(registered)}


def _flag(name: str) -> str:
    return "DATA" if name == "data" else "--" + name.replace("_", "-")


def _defaults(kind: str, name: str) -> dict[str, Any]:
    """What fairseq's command line makes of nothing but this choice: its options' values."""
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from omegaconf import OmegaConf

    arguments = ["", "--arch", "transformer", _flag(kind), name]  # what is given twice is what was given last
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser(), arguments))
    values = cfg["model" if kind == "arch" else kind]
    if kind == "task":
        values.data = None
    return cast(dict[str, Any], OmegaConf.to_container(OmegaConf.create(values), resolve=True, enum_to_str=True))


def shown(default: Any) -> str:
    """A default as it is typed; nothing where there is none."""
    if default is None or isinstance(default, bool):
        return {None: "", False: "off", True: "on"}[default]
    return f"({', '.join(map(str, default))})" if isinstance(default, list) else str(default)


def _table(name: str, options: list[Option]) -> Table:
    table = Table("option", "default", "meaning", "of", title=f"{_flag(choices()[name])} {name}", title_justify="left")
    for option in options:
        whose = "fairseq_mtmoe" if option.is_ours else "fairseq"
        table.add_row(option.flag, escape(shown(option.default)), escape(option.meaning), whose)
    table.columns[0].no_wrap = True
    return table


def _overview() -> Table:
    """A row for each registered class, which may have several names."""
    head = ("choice", "names", "options that fairseq does not have")
    table = Table(*head, title="fairseq_mtmoe adds", title_justify="left")
    for kind, known in _registries().items():
        theirs = _names_of_fairseq(kind)
        for registered in dict.fromkeys(filter(_is_ours, known.values())):
            names = ", ".join(name for name, found in known.items() if found is registered)
            own = ", ".join(_flag(name) for name in _meanings(registered) if name not in theirs)
            table.add_row(_flag(kind), names, own or "none: they are fairseq's")
    return table
