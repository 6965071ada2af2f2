"""`mtmoe average`: the mean of several checkpoints' parameters."""

from pathlib import Path

import click

from fairseq_mtmoe.cli._shared import PATH, overwrite_option, progress_bar
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import output_file


@click.command("average")
@click.option(
    "--inputs",
    required=True,
    multiple=True,
    type=PATH,
    metavar="FILE [FILE…]",
    help="Checkpoints; with --num-…, one folder that contains them.",
)
@click.argument("more", nargs=-1, metavar="[FILE…]", type=PATH)
@click.option("--output", required=True, type=PATH, metavar="FILE", help="Checkpoint to write.")
@click.option(
    "--num-epoch-checkpoints",
    type=int,
    metavar="N",
    help="Average the last N epoch checkpoints, checkpointX.pt.",
)
@click.option(
    "--num-update-checkpoints",
    type=int,
    metavar="N",
    help="Average the last N update checkpoints, checkpoint_E_X.pt.",
)
@click.option(
    "--checkpoint-upper-bound",
    type=int,
    metavar="X",
    help="Leave out checkpoints whose number X is higher.",
)
@click.option(
    "--checkpoint-suffix",
    default="",
    metavar="SUFFIX",
    help="The run's --checkpoint-suffix, to find its checkpoints with --num-….",
)
@overwrite_option
def command(
    inputs: tuple[Path, ...],
    more: tuple[Path, ...],
    output: Path,
    num_epoch_checkpoints: int | None,
    num_update_checkpoints: int | None,
    checkpoint_upper_bound: int | None,
    checkpoint_suffix: str,
    overwrite: bool,
) -> None:
    """Average the parameters of checkpoints.

    The mean is that of fairseq's scripts/average_checkpoints.py. The inputs may have separate
    expert files. The output is one file without optimizer state, for fairseq-generate with
    --user-dir "$(mtmoe user-dir)". All other entries come from the first input, with --num-… from
    the newest.
    """
    from fairseq_mtmoe.checkpoints import rewriting

    paths = [*inputs, *more]
    counts = [
        count for count in (num_epoch_checkpoints, num_update_checkpoints) if count is not None
    ]
    if len(counts) > 1:
        raise UserError(
            "`--num-epoch-checkpoints` cannot be combined with `--num-update-checkpoints`."
        )
    if counts:
        if len(paths) != 1:
            raise UserError("`--inputs` must be one folder if `--num-…-checkpoints` is given.")
        pattern = rewriting.EPOCHS if num_epoch_checkpoints is not None else rewriting.UPDATES
        paths = rewriting.newest(
            paths[0], pattern, counts[0], checkpoint_upper_bound, checkpoint_suffix
        )
    elif checkpoint_upper_bound is not None:
        others = "`--num-epoch-checkpoints` or `--num-update-checkpoints`"
        raise UserError(f"`--checkpoint-upper-bound` requires {others}.")
    for path in paths:
        output_file("--output", output, overwrite, **{"--inputs": path})
    with progress_bar("checkpoints", transient=True) as progress:
        state = rewriting.average(progress.track(paths))
    rewriting.save_whole(state, output)
    click.echo(
        f"{output}: the mean of {', '.join(map(str, paths))}; one file, without optimizer state"
    )
