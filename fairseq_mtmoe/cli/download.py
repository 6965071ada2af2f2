"""`mtmoe download`: the openly available corpora of a recipe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import progress as bars
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fairseq_mtmoe.cli._shared import PATH, ProgressLines, say, show
from fairseq_mtmoe.core.errors import UserError, visible
from fairseq_mtmoe.core.files import check_writable
from fairseq_mtmoe.corpora.recipes import SHIPPED

if TYPE_CHECKING:
    from fairseq_mtmoe.corpora.raw_files import Item


@click.command(
    "download",
    help=f"""Download the corpora of RECIPE ({", ".join(SHIPPED)}, or your own file) into RAW.

Existing files are kept, interrupted downloads are continued, and every file is verified. The last
lines list the files that you must get by hand.
""",
)
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("raw", type=PATH)
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="List files, sizes, licences and state; download nothing.",
)
def command(recipe_name: str, raw: Path, only_list: bool) -> None:
    """Download the files of a recipe's corpora, or list them; see the options."""
    from fairseq_mtmoe.corpora.recipes.recipe import load_recipe

    recipe = load_recipe(recipe_name, "RECIPE")
    from fairseq_mtmoe.corpora.raw_files import items_of

    items = items_of(recipe.corpora)
    if not items:
        click.echo(
            f"The recipe {recipe_name} takes text of your own: there is nothing to download."
        )
        return
    if only_list:
        _show(items, raw)
        return
    check_writable(raw)
    failed = _download([item for item in items if item.address], raw)
    there = sum(os.path.exists(raw / item.file) for item in items)
    click.echo(f"{there} of {len(items)} files are in {raw}.")
    by_hand = [item for item in items if not item.address and not os.path.exists(raw / item.file)]
    if by_hand:
        click.echo("By hand:")
    for item in by_hand:
        what = item.by_hand or "put it there"
        say([f"  {raw / item.file}: {what} (for {', '.join(item.corpora)})"])
    for file, sentence in failed.items():
        say([f"failed: {raw / file}: {sentence}"], Console(stderr=True))
    then = f"mtmoe prepare corpora {raw} DATA --recipe {recipe_name}"
    if failed:
        raise UserError(
            f"{len(failed)} of {len(items)} files could not be downloaded; the others are kept. "
            "Try again later, or copy each file to the place that `failed:` names, or continue "
            f"without them: `{then} --skip-missing`."
        )
    click.echo(
        "Then: "
        f"{then}{' (without the missing files: --skip-missing)' if there < len(items) else ''}"
    )


def _show(items: Sequence[Item], raw: Path) -> None:
    """Print a table of the files with size, licence, origin and whether they exist."""
    table = Table("file", "size", "licence", "from", "exists")
    for item in items:
        path = raw / item.file
        # Unlike `Path.exists`, this does not raise for names that are too long.
        is_there = os.path.exists(path)
        size = path.stat().st_size if is_there else item.size
        origin = item.address or (f"by hand: {item.by_hand}" if item.by_hand else "your own file")
        shown = decimal(size) if size is not None else "?"
        state = "yes" if is_there else "no"
        table.add_row(*map(visible, (item.file, shown, item.licence, origin, state)))
    show(table)


def _download(items: Sequence[Item], raw: Path) -> dict[str, str]:
    try:
        from fairseq_mtmoe.corpora.download import download
    except ModuleNotFoundError as error:
        raise UserError(
            f"`mtmoe download` needs the Python package {error.name}: run `pip install "
            "'fairseq_mtmoe[corpora]'`."
        ) from error
    console = Console(stderr=True)
    columns = (
        bars.BarColumn(),
        bars.DownloadColumn(),
        bars.TransferSpeedColumn(),
        bars.TimeRemainingColumn(),
    )
    name = bars.TextColumn("{task.description}")
    bar = bars.Progress(name, *columns, console=console)
    with bar if console.is_terminal else ProgressLines("bytes", console) as progress:
        return download(items, raw, progress)
