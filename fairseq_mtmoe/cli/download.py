"""`mtmoe download`: the openly available corpora of a recipe."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich import progress as bars
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fairseq_mtmoe.cli._shared import PATH, WHOLE, ProgressLines, list_option, say, show
from fairseq_mtmoe.core.errors import UserError, visible
from fairseq_mtmoe.core.files import check_writable
from fairseq_mtmoe.corpora.recipes import SHIPPED

if TYPE_CHECKING:
    from fairseq_mtmoe.corpora.raw_files import Item


INDEXES = ("mtdata", "sacrebleu")


@click.command("download")
@click.argument("raw", type=PATH, required=False)
@click.option(
    "--recipe",
    "recipe_name",
    help=f"Recipe whose corpora are downloaded: {', '.join(SHIPPED)}, or your own file.",
)
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="List files, sizes, licences and state; download nothing, and ask no server.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="List what would be downloaded, with the sizes that servers tell; download nothing.",
)
@click.option(
    "--from",
    "index",
    type=click.Choice(INDEXES),
    help="Instead of downloading, list the data sets that this index has for --langs. A recipe "
    "names them. Needs no network.",
)
@list_option("--langs", metavar="LANGS", help="Languages of --from, such as en,ha,sw.")
def command(
    raw: Path | None,
    recipe_name: str | None,
    only_list: bool,
    dry_run: bool,
    index: str | None,
    langs: Sequence[str],
) -> None:
    """Download the corpora of a recipe into RAW, or list what there is.

    Existing files are kept, interrupted downloads are continued, and every file is verified. The
    last lines list the files that you must get by hand.
    """
    if index is not None:
        if recipe_name is not None:
            raise UserError("`--from` cannot be combined with `--recipe`.")
        _show_index(index, langs)
        return
    if raw is None or recipe_name is None or langs:
        raise UserError("`mtmoe download` requires RAW and `--recipe`, or `--from` and `--langs`.")
    from fairseq_mtmoe.corpora.monolingual import write_text
    from fairseq_mtmoe.corpora.raw_files import items_of
    from fairseq_mtmoe.corpora.recipes.from_yaml import load_recipe

    recipe = load_recipe(recipe_name)
    items = items_of(recipe.corpora)
    if not items:
        click.echo(
            f"The recipe {recipe_name} takes text of your own: there is nothing to download."
        )
        return
    if only_list:
        _show(items, raw)
        return
    _expect_packages()
    if dry_run:
        _show_plan(items, raw)
        return
    check_writable(raw)
    failed = _download([item for item in items if item.address], raw)
    for corpus in recipe.corpora:
        if corpus.text_of and os.path.exists(raw / corpus.downloads[0]):
            write_text(corpus, raw)
    _say_state(items, raw, failed, recipe_name)


def _expect_packages() -> None:
    """Raise `UserError` if a package for requests to servers is missing."""
    try:
        import fairseq_mtmoe.corpora.web  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(
            f"`mtmoe download` needs the Python package {error.name}: run `pip install "
            "'fairseq_mtmoe[corpora]'`."
        ) from error


def _say_state(
    items: Sequence[Item], raw: Path, failed: Mapping[str, str], recipe_name: str
) -> None:
    """Print which files are there, which are to be got by hand, and what failed.

    Raises `UserError` if a download failed.
    """
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
    show(table, WHOLE)


def _show_plan(items: Sequence[Item], raw: Path) -> None:
    """Print what would be downloaded, with the sizes that servers tell, and their sum."""
    from fairseq_mtmoe.corpora.web import sizes

    missing = [item for item in items if item.address and not os.path.exists(raw / item.file)]
    told = sizes(missing)
    table = Table("file", "size", "from")
    for item, size in zip(missing, told, strict=True):
        shown = "?" if size is None else decimal(size)
        table.add_row(*map(visible, (item.file, shown, item.address)))
    show(table, WHOLE)
    known = [size for size in told if size is not None]
    unknown = f", {len(told) - len(known)} of unknown size" if len(known) < len(told) else ""
    click.echo(f"Files to download: {len(told)}; {decimal(sum(known))} in all{unknown}.")


def _show_index(index: str, langs: Sequence[str]) -> None:
    """Print the data sets that an index has for the pairs of some languages."""
    from fairseq_mtmoe.corpora.recipes.named import listing

    codes = listing.codes_of(langs)
    rows = listing.of_mtdata(codes) if index == "mtdata" else listing.of_sacrebleu(codes)
    if not rows:
        raise UserError(f"`--from {index}` has no data sets between {', '.join(codes)}.")
    table = Table("name", "pair", "format", "from")
    for row in rows:
        table.add_row(*map(visible, row))
    show(table, WHOLE)
    click.echo(
        f"{len(rows)} data sets. A recipe names them as `{index}: NAME`; the index has no sizes or "
        "licences, so look at each address."
    )


def _download(items: Sequence[Item], raw: Path) -> dict[str, str]:
    from fairseq_mtmoe.corpora.download import download

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
