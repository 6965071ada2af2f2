"""`mtmoe upcycle`: a sparse checkpoint from a dense one."""

from __future__ import annotations

from pathlib import Path

import click

from fairseq_mtmoe.io.files import output_file


@click.command("upcycle")
@click.argument("dense", type=click.Path(path_type=Path))
@click.argument("sparse", type=click.Path(path_type=Path))
@click.option("--num-experts", type=int, required=True, help="Experts per expert layer.")
@click.option("--expert-gates", default="base", show_default=True, help="base, task, switch or a pattern: base,task.")
@click.option("--expert-interval", type=int, default=2, show_default=True, help="Every how many blocks one has them.")
@click.option("--expert-combine", default="preserving", show_default=True, help="preserving or paper.")
@click.option("--task-names", help="Comma-separated; default: DENSE's languages.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the gates' initial values.")
@click.option("--overwrite", is_flag=True, help="Replace SPARSE if it exists.")
def command(dense: Path, sparse: Path, seed: int, overwrite: bool, **options: object) -> None:
    """Write to SPARSE the checkpoint DENSE with its feed-forward layers copied into experts.

    DENSE may come from this plugin or from stock fairseq's transformer. With the default --expert-combine the new model
    translates exactly as DENSE does until it is trained further, which `fairseq-train --restore-file SPARSE` does.
    Adam's moments travel along.
    """
    from fairseq_mtmoe import register

    output_file("SPARSE", sparse, overwrite, DENSE=dense)
    register()
    from fairseq_mtmoe.checkpoints import building, file_io
    from fairseq_mtmoe.checkpoints.cleanup import remove_orphans
    from fairseq_mtmoe.sparsify.upcycle import upcycle

    checkpoint = file_io.load(str(dense))
    with building.choosing("model"):
        building.admit(dense, checkpoint)
        result = upcycle("base_moe", checkpoint, options, seed)
    file_io.save(result, str(sparse))
    if sparse.suffix == ".pt":
        remove_orphans(sparse)  # of the experts of what was there before
    moments = "with" if "last_optimizer_state" in result else "without"
    click.echo(f"{sparse}: {options['num_experts']} experts per layer, {moments} the optimizer's moments")
