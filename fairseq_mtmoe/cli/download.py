"""`mtmoe download`: the corpora of a recipe, as far as they are openly available."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import click
from rich import progress as bars
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from fairseq_mtmoe.cli._shared import PATH, say
from fairseq_mtmoe.data.corpora.raw_files import Item, items_of
from fairseq_mtmoe.data.corpora.recipes.recipe import SHIPPED, load_recipe
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import check_writable


@click.command(
    "download",
    help=f"""Download the corpora of RECIPE ({", ".join(SHIPPED)}, or your own file) into RAW.

What is there is kept, what broke off goes on, and every file is verified. At the end stands what must be got by hand.
""",
)
@click.argument("recipe_name", metavar="RECIPE")
@click.argument("raw", type=PATH)
@click.option("--list", "only_list", is_flag=True, help="Show all files, licences and what is there; fetch nothing.")
def command(recipe_name: str, raw: Path, only_list: bool) -> None:
    items = items_of(load_recipe(recipe_name, "RECIPE").corpora)
    if not items:
        click.echo(f"The recipe {recipe_name} takes text of your own: there is nothing to download.")
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
        click.echo(f"  {raw / item.file}: {item.by_hand or 'put it there'} (for {', '.join(item.corpora)})")
    for file, sentence in failed.items():
        click.echo(f"failed: {raw / file}: {sentence}", err=True)
    then = f"mtmoe prepare corpora {raw} DATA --recipe {recipe_name}"
    if failed:
        raise UserError(
            f"{len(failed)} of {len(items)} files could not be downloaded; what came stays: try again later, or put"
            f" each by hand where `failed:` has it, or go on without them: `{then} --skip-missing`."
        )
    click.echo(f"Then: {then}{' (or, without what is missing, with --skip-missing)' if there < len(items) else ''}")


def _show(items: Sequence[Item], raw: Path) -> None:
    """A line for each file: what it is, how large, under which licence, and whether it is there."""
    table = Table("file", "size", "licence", "from", "there")
    for item in items:
        path = raw / item.file
        part = path.with_name(f"{path.name}.part")
        is_there = os.path.exists(path)  # unlike `Path.exists` this can be asked of a name that is too long, too
        size = path.stat().st_size if is_there else item.size
        begun = f"{decimal(part.stat().st_size)} of it" if os.path.exists(part) else "no"
        state = "yes" if is_there else begun
        origin = item.address or f"by hand: {item.by_hand}"
        table.add_row(item.file, "?" if size is None else decimal(size), item.licence, origin, state)
    Console(width=None if Console().is_terminal else 250).print(table)


def _download(items: Sequence[Item], raw: Path) -> dict[str, str]:
    try:
        from fairseq_mtmoe.data.corpora.download import download
    except ModuleNotFoundError as error:
        raise UserError(
            f"`mtmoe download` must have the Python package {error.name}: pip install 'fairseq_mtmoe[corpora]'."
        ) from error
    console = Console(stderr=True)
    columns = (bars.BarColumn(), bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn())
    name = bars.TextColumn("{task.description}")
    with bars.Progress(name, *columns, console=console, disable=not console.is_terminal) as progress:
        return download(items, raw, _Shown(progress))


class _Shown:
    """A bar for each file that comes, on a terminal; elsewhere only what goes wrong is said."""

    def __init__(self, progress: bars.Progress) -> None:
        self._progress = progress
        self._lock = threading.Lock()
        self._tasks = dict[str, bars.TaskID]()

    def has(self, item: Item, done: int, size: int | None) -> None:
        """Move the file's bar, and take it away at its end."""
        with self._lock:
            if item.file not in self._tasks:
                self._tasks[item.file] = self._progress.add_task(item.file, total=size)
        self._progress.update(self._tasks[item.file], completed=done, total=size, visible=done != size)

    def waits(self, item: Item, reason: str, pause: float) -> None:
        """Say so above the bars."""
        say([f"{item.file} from {item.host}: {reason}; tried again in {pause:.0f} s"], self._progress.console)
