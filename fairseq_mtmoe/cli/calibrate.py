"""`mtmoe calibrate`: prices for the BASE layers of a checkpoint, from training batches."""

from pathlib import Path

import click
from rich.console import Console

from fairseq_mtmoe.analysis.tables import Table
from fairseq_mtmoe.cli._shared import PATH, progress_bar, quiet_fairseq
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import check_writable, output_file, regular_file


@click.command("calibrate")
@click.argument("checkpoint", type=PATH)
@click.argument("out", type=PATH)
@click.argument("data")
@click.option("--updates", type=click.IntRange(1), default=100, show_default=True,
              help="Updates to pass through the model. With the usual --price-memory of 0.95 the first of 100 counts "
              "0.6% of what the last does: more would change nothing.")  # fmt: skip
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens in a batch; by default the run's.")
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists; it may be CHECKPOINT.")
@click.option("--cpu", is_flag=True, help="Do not use a GPU.")
@quiet_fairseq()
def command(
    checkpoint: Path, out: Path, data: str, updates: int, max_tokens: int | None, overwrite: bool, cpu: bool
) -> None:
    """Write to OUT the CHECKPOINT with prices for its BASE layers, from training batches of DATA.

    Since 0.1.2 a run keeps the mean of the prices at which BASE layers share tokens out evenly, and evaluation routes
    by them. This gives prices to an older checkpoint, or new ones to any: those that its run would have kept, had it
    gone on for --updates with a learning rate of 0, with its own sampling, sizes, seed and dropout. A moving average
    of the weights (--store-ema) gets prices of its own. All else stays as it is.

    Prints for each layer its prices, and the load of its fullest expert as a multiple of the mean, by scores alone and
    by prices, on the batches of 8 more updates.
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
        expert_folder(out)  # what cannot be written is said before the work
    check_writable(out.parent)
    read = _identity(checkpoint)
    with progress_bar("updates") as progress:
        bar = progress.add_task("calibrating", total=None)
        calibrated = calibrate(str(checkpoint), data, updates, max_tokens, cpu,
                               lambda done, total: progress.update(bar, completed=done, total=total))  # fmt: skip
    if _identity(checkpoint) != read:
        raise UserError(f"`{checkpoint}` was replaced meanwhile, by its run perhaps: calibrate a copy of it.")
    save_with_experts(calibrated.state, checkpoint, out)
    rows = [(one.layer, f"{one.lowest:+.3f}", f"{one.highest:+.3f}", f"{one.greedy_load:.2f}", f"{one.load:.2f}")
            for one in calibrated.layers]  # fmt: skip
    Console().print(Table(["layer", "prices from", "to", "load by scores", "load by prices"], rows).on_screen())
    beside = f", experts in {expert_folder(out)}" if is_shared_part(calibrated.state) else ""
    click.echo(f"{out}: prices of {updates} update{'s' * (updates != 1)}{beside}")
    told = calibrated.state["cfg"]["model"].get("base_evaluation", "prices")
    if told != "prices":
        click.echo(f"Its run was told --base-evaluation {told}: it uses the prices where it is told prices instead.")


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What a file that took its place would differ in."""
    found = path.stat() if path.exists() else None
    return found and (found.st_ino, found.st_mtime_ns, found.st_size)
