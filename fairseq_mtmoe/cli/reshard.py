"""`mtmoe reshard`: a checkpoint with its experts in other files."""

from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from fairseq_mtmoe.cli._shared import PATH
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import output_file


@click.command("reshard")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("target", metavar="OUT", type=PATH)
@click.option("--experts-per-file", type=int, metavar="K", help="Experts in each file, in the folder OUT's .experts.")
@click.option("--single-file", is_flag=True, help="All experts in OUT itself, as one process saves them.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
def command(source: Path, target: Path, experts_per_file: int | None, single_file: bool, overwrite: bool) -> None:
    """Write the checkpoint IN to OUT with its experts in other files.

    No run needs this: any number of processes reads any files. It is for handing a checkpoint on, as one file for
    example, and for processes that would read the same large file. Optimizer moments travel along.
    """
    from fairseq_mtmoe.checkpoints import rewriting

    if single_file == (experts_per_file is not None):
        raise UserError("Exactly one of `--experts-per-file` and `--single-file` must be given.")
    output_file("OUT", target, overwrite, IN=source)
    if experts_per_file is None:
        rewriting.write_whole(source, target)
        click.echo(f"{target}: all experts in one file")
    else:
        files = rewriting.write_in_parts(source, target, experts_per_file, _track)
        click.echo(f"{target}: experts in {files} file{'s' * (files != 1)} in {target.with_suffix('.experts')}")


def _track(items: Iterable[int]) -> Iterable[int]:
    console = Console(stderr=True)
    return track(list(items), "writing experts", console=console, disable=not console.is_terminal)
