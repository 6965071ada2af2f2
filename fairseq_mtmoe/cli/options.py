"""`mtmoe options`: architectures, tasks and more of this package, with options."""

import click
from rich.markup import escape
from rich.table import Table

from fairseq_mtmoe.cli._registered import Choice, choice_of, choices_by_class, flag_of, shown
from fairseq_mtmoe.cli._shared import show


@click.command("options")
@click.argument("name", required=False)
def command(name: str | None) -> None:
    """List the options of NAME, an architecture, task, criterion or optimizer.

    Without NAME, list all names. The table has each option's meaning, its default for NAME, and its
    origin: this plugin or fairseq.
    """
    show(_overview() if name is None else _table(choice_of(name)))
    if name is None:
        click.echo("`mtmoe options NAME` lists the options of each.")


def _table(choice: Choice) -> Table:
    title = f"{flag_of(choice.kind)} {choice.name}"
    table = Table("option", "default", "meaning", "from", title=title)
    for option in choice.options():
        origin = "fairseq_mtmoe" if option.is_ours else "fairseq"
        table.add_row(option.flag, escape(shown(option.default)), escape(option.meaning), origin)
    table.columns[0].no_wrap = True
    return table


def _overview() -> Table:
    """Return a table with a row for each registered class."""
    columns = ("choice", "names", "options that fairseq does not have")
    table = Table(*columns, title="fairseq_mtmoe adds")
    for group in choices_by_class():
        flags = ", ".join(option.flag for option in group[0].new_options())
        names = ", ".join(choice.name for choice in group)
        table.add_row(flag_of(group[0].kind), names, flags or "none: all are fairseq's")
    return table
