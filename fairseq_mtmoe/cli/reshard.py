"""`mtmoe reshard`: a checkpoint with another number of experts in each file."""

from pathlib import Path

import click

from fairseq_mtmoe.cli._shared import PATH, overwrite_option, progress_bar
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import output_file


@click.command("reshard")
@click.argument("source", metavar="IN", type=PATH)
@click.argument("target", metavar="OUT", type=PATH)
@click.option(
    "--experts-per-file", type=int, metavar="K", help="Experts per file, in OUT's .experts folder."
)
@click.option(
    "--single-file",
    is_flag=True,
    help="Write all experts into OUT itself, as a run of one process does.",
)
@overwrite_option
def command(
    source: Path, target: Path, experts_per_file: int | None, single_file: bool, overwrite: bool
) -> None:
    """Write the checkpoint IN to OUT with another number of experts in each file.

    Runs do not need this: any number of processes can read any layout. Use it to hand on a
    checkpoint as one file, or to spare processes reading one large file. The optimizer state is
    kept.
    """
    from fairseq_mtmoe.checkpoints import rewriting

    if single_file == (experts_per_file is not None):
        raise UserError("Give either `--experts-per-file` or `--single-file`.")
    output_file("OUT", target, overwrite, IN=source)
    if experts_per_file is None:
        rewriting.write_whole(source, target)
        click.echo(f"{target}: all experts in one file")
    else:
        with progress_bar("files", transient=True) as progress:
            files = rewriting.write_in_parts(source, target, experts_per_file, progress.track)
        click.echo(
            f"{target}: experts in {files} file{'s' * (files != 1)} in "
            f"{target.with_suffix('.experts')}"
        )
