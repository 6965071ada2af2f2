"""`mtmoe options`: the architectures, tasks, criterions and optimizers of this package, with their options.

`tools/reference.py` writes them to `registered.json`, so that the command need not import fairseq.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fairseq_mtmoe.errors import flag, raise_invalid

FILE = Path(__file__).parent / "registered.json"


class Option(NamedTuple):
    """Command-line option, with its default for one architecture."""

    flag: str
    default: Any
    meaning: str  # empty: hidden
    is_ours: bool  # no class of fairseq's own of this kind (architecture, task, …) has an option of this name
    type: str = ""  # only for options of `mtmoe upcycle`


class Choice(NamedTuple):
    """Class that `--KIND NAME` chooses, with its options, our own first; one class may have several names."""

    name: str
    kind: str
    registered: str
    options: list[Option]

    @property
    def own(self) -> list[Option]:
        """Return the options that fairseq does not have."""
        return [option for option in self.options if option.is_ours]


class Registered(NamedTuple):
    """All choices, and the sparse models' options that `mtmoe upcycle` takes."""

    choices: list[Choice]
    of_upcycle: list[Option]

    def to_json(self) -> str:
        """Return the content of `registered.json`: each class's options once, then its names with their defaults."""
        classes = {
            one.registered: [[option.flag, option.meaning, option.is_ours] for option in one.options]
            for one in self.choices
        }
        names = [
            [one.name, one.kind, one.registered, {option.flag: option.default for option in one.options}]
            for one in self.choices
        ]
        blocks = ",\n".join(f"{json.dumps(of)}: {_lines(options)}" for of, options in classes.items())
        rest = f'"names": {_lines(names)},\n"upcycle": {_lines(self.of_upcycle)}'
        return f'{{"classes": {{\n{blocks}\n}},\n{rest}}}\n'

    @classmethod
    def from_json(cls, text: str) -> "Registered":
        """Read the text that `to_json` returned."""
        read = json.loads(text)
        choices = [
            Choice(name, kind, of, [Option(flag, defaults[flag], *rest) for flag, *rest in read["classes"][of]])
            for name, kind, of, defaults in read["names"]
        ]
        return cls(choices, [Option(*fields) for fields in read["upcycle"]])


def _lines(rows: Sequence[Sequence[Any]]) -> str:
    return "[\n" + ",\n".join(map(json.dumps, rows)) + "\n]"


@click.command("options")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the options of NAME, an architecture, task, criterion or optimizer; without NAME, list all names.

    The table has each option's meaning, its default for NAME, and its origin: this plugin or fairseq.
    """
    console = Console() if Console().is_terminal else Console(width=150)
    console.print(_overview(registered().choices) if name is None else _table(choice_of(name)))
    if name is None:
        console.print("`mtmoe options NAME` lists the options of each.")


@cache
def registered() -> Registered:
    """Return all choices and their options."""
    return Registered.from_json(FILE.read_text(encoding="utf-8"))


def choice_of(name: str) -> Choice:
    """Return the choice with this name (UserError: unknown name)."""
    known = {one.name: one for one in registered().choices}
    if name not in known:
        raise_invalid("NAME", f"one of {', '.join(known)}", name)
    return known[name]


def flag_of(name: str) -> str:
    """Return an option as typed on the command line."""
    return "DATA" if name == "data" else flag(name)


def shown(default: Any) -> str:
    """Return a default as typed on the command line; empty for None."""
    if default is None or isinstance(default, bool):
        return {None: "", False: "off", True: "on"}[default]
    return f"({', '.join(map(str, default))})" if isinstance(default, list) else str(default)


def _table(choice: Choice) -> Table:
    title = f"{flag_of(choice.kind)} {choice.name}"
    table = Table("option", "default", "meaning", "from", title=title, title_justify="left")
    for option in choice.options:
        whose = "fairseq_mtmoe" if option.is_ours else "fairseq"
        table.add_row(option.flag, escape(shown(option.default)), escape(option.meaning), whose)
    table.columns[0].no_wrap = True
    return table


def _overview(choices: Sequence[Choice]) -> Table:
    """Return a table with a row for each registered class."""
    head = ("choice", "names", "options that fairseq does not have")
    table = Table(*head, title="fairseq_mtmoe adds", title_justify="left")
    for named in by_class(choices):
        own = ", ".join(option.flag for option in named[0].own)
        names = ", ".join(one.name for one in named)
        table.add_row(flag_of(named[0].kind), names, own or "none: all are fairseq's")
    return table


def by_class(choices: Sequence[Choice]) -> list[list[Choice]]:
    """Return the choices grouped by class, in order of first appearance."""
    found: dict[tuple[str, str], list[Choice]] = {}
    for one in choices:
        found.setdefault((one.kind, one.registered), []).append(one)
    return list(found.values())
