"""`mtmoe average`: a checkpoint whose parameters are the means of several checkpoints'."""

from pathlib import Path

import click
from rich.console import Console
from rich.progress import track

from fairseq_mtmoe.cli._shared import PATH
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import output_file


@click.command("average")
@click.option("--inputs", required=True, multiple=True, type=PATH, metavar="FILE [FILE…]",
              help="Checkpoints, or with --num-… the one folder to find them in.")  # fmt: skip
@click.argument("more", nargs=-1, metavar="[FILE…]", type=PATH)
@click.option("--output", required=True, type=PATH, metavar="FILE", help="To write.")
@click.option("--num-epoch-checkpoints", type=int, metavar="N",
              help="Average the last N checkpoints of epochs, checkpointX.pt.")  # fmt: skip
@click.option("--num-update-checkpoints", type=int, metavar="N",
              help="Average the last N checkpoints of updates, checkpoint_E_X.pt.")  # fmt: skip
@click.option("--checkpoint-upper-bound", type=int, metavar="X", help="Leave out those with a higher number.")
@click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
def command(
    inputs: tuple[Path, ...], more: tuple[Path, ...], output: Path, num_epoch_checkpoints: int | None,
    num_update_checkpoints: int | None, checkpoint_upper_bound: int | None, overwrite: bool,
) -> None:  # fmt: skip
    """Average the parameters of checkpoints, as fairseq's scripts/average_checkpoints.py does.

    The checkpoints may have their experts in files of their own; the output is one file, for fairseq-generate with
    --user-dir fairseq_mtmoe, and has no optimizer's state. All else is from the first, with --num-… the newest.
    """
    from fairseq_mtmoe.checkpoints import rewriting

    paths = [*inputs, *more]
    counts = [count for count in (num_epoch_checkpoints, num_update_checkpoints) if count is not None]
    if len(counts) > 1:
        raise UserError("Only one of `--num-epoch-checkpoints` and `--num-update-checkpoints` must be given.")
    if counts:
        if len(paths) != 1:
            raise UserError("`--inputs` must be one folder to find `--num-…-checkpoints` in.")
        pattern = rewriting.EPOCHS if num_epoch_checkpoints is not None else rewriting.UPDATES
        paths = rewriting.newest(paths[0], pattern, counts[0], checkpoint_upper_bound)
    elif checkpoint_upper_bound is not None:
        others = "`--num-epoch-checkpoints` or `--num-update-checkpoints`"
        raise UserError(f"`--checkpoint-upper-bound` must be given with {others}.")
    output_file("--output", output, overwrite)
    console = Console(stderr=True)
    state = rewriting.average(track(paths, "averaging", console=console, disable=not console.is_terminal))
    rewriting.save_whole(state, output)
    click.echo(f"{output}: the mean of {', '.join(map(str, paths))}; one file, without an optimizer's state")
