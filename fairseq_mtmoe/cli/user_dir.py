"""`mtmoe user-dir`: the path for fairseq's `--user-dir`."""

from pathlib import Path

import click


@click.command("user-dir")
def command() -> None:
    """Print this plugin's path, for fairseq's --user-dir.

    \b
    fairseq-train DATA --user-dir "$(mtmoe user-dir)" --task translation_heated ...
    """
    click.echo(Path(__file__).parents[1])
