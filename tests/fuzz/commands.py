"""Commands in a try's process."""

from __future__ import annotations

import importlib
import sys

import click

from fairseq_mtmoe import register
from fairseq_mtmoe.cli.main import commands


def mtmoe(*arguments: object) -> None:
    try:
        commands.main(list(map(str, arguments)), standalone_mode=False)
    except (click.ClickException, click.Abort):
        return


def fairseq(command: str, *arguments: object) -> None:
    sys.argv = [f"fairseq-{command}", *map(str, arguments)]
    importlib.import_module(f"fairseq_cli.{command}").cli_main()


def import_all() -> None:
    """Import what the commands import, so that a try need not."""
    import tests.helpers.forked  # noqa: F401

    register()
    for command in ("generate", "train", "validate"):
        importlib.import_module(f"fairseq_cli.{command}")
    for command in commands.list_commands(click.Context(commands)):
        commands.get_command(click.Context(commands), command)
