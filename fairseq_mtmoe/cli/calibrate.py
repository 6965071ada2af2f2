"""`mtmoe calibrate`: dual prices of a checkpoint's BASE layers, from training batches."""

from pathlib import Path

import click
from rich.console import Console

from fairseq_mtmoe.cli._shared import PATH, progress_bar, quiet_fairseq
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import check_writable, output_file, regular_file
from fairseq_mtmoe.io.tables import Table


@click.command("calibrate")
@click.argument("checkpoint", type=PATH)
@click.argument("out", type=PATH)
@click.argument("data")
@click.option("--updates", type=click.IntRange(1), default=100, show_default=True,
              help="Updates whose batches pass through the model. With --price-memory 0.95 the first of 100 weighs "
              "0.6% as much as the last, so that more change nothing.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens in a batch; by default as in the run.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists; it may be CHECKPOINT.")
@click.option("--cpu", is_flag=True, help="Do not use a GPU.")
@quiet_fairseq()
def command(
    checkpoint: Path, out: Path, data: str, updates: int, max_tokens: int | None, overwrite: bool, cpu: bool
) -> None:
    """Write CHECKPOINT with dual prices for its BASE layers, from training batches of DATA, to OUT.

    Since 0.1.2 a run keeps the running mean of the dual prices that balance its experts, and evaluation routes by them.
    This command gives prices to an older checkpoint, or recomputes them: it continues the run for --updates with a
    learning rate of 0, and with the run's sampling, batch size, seed and dropout. Averaged weights (--store-ema) get
    their own prices. All else is kept.

    Prints each layer's prices and, over 8 more updates, the load of its fullest expert relative to the mean: by scores
    alone and by prices.
    """
    from fairseq_mtmoe import register

    output_file("OUT", out, overwrite)
    regular_file(checkpoint, "a checkpoint file")
    register()
    from fairseq_mtmoe.checkpoints.file_io import peek
    from fairseq_mtmoe.checkpoints.rewriting import save_with_experts
    from fairseq_mtmoe.checkpoints.sharding import expert_folder, is_shared_part
    from fairseq_mtmoe.evaluation.calibration import calibrate

    if is_shared_part(peek(checkpoint) or {}):
        expert_folder(out)  # fails before the work if OUT's name does not allow it
    check_writable(out.parent)
    read = _identity(checkpoint)
    with progress_bar("updates") as progress:
        bar = progress.add_task("calibrating", total=None)
        calibrated = calibrate(str(checkpoint), data, updates, max_tokens, cpu,
                               lambda done, total: progress.update(bar, completed=done, total=total))  # fmt: skip
    if _identity(checkpoint) != read:
        raise UserError(f"`{checkpoint}` was replaced meanwhile, perhaps by its run: calibrate a copy of it.")
    save_with_experts(calibrated.state, checkpoint, out)
    rows = [(one.layer, f"{one.lowest:+.3f}", f"{one.highest:+.3f}", f"{one.greedy_load:.2f}", f"{one.load:.2f}")
            for one in calibrated.layers]  # fmt: skip
    Console().print(Table(["layer", "prices from", "to", "load by scores", "load by prices"], rows).on_screen())
    beside = f", experts in {expert_folder(out)}" if is_shared_part(calibrated.state) else ""
    click.echo(f"{out}: prices of {updates} update{'s' * (updates != 1)}{beside}")
    told = calibrated.state["cfg"]["model"].get("base_evaluation", "prices")
    if told != "prices":
        click.echo(f"It was trained with --base-evaluation {told}: give --base-evaluation prices to use the prices.")


def _identity(path: Path) -> tuple[int, int, int] | None:
    """Return values that differ if another file takes this file's place."""
    found = path.stat() if path.exists() else None
    return found and (found.st_ino, found.st_mtime_ns, found.st_size)
