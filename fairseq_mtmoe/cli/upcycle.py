"""`mtmoe upcycle`: a sparse checkpoint from a dense one."""

from pathlib import Path

import click

from fairseq_mtmoe.cli._shared import PATH, expect_checkpoints
from fairseq_mtmoe.cli.options import registered
from fairseq_mtmoe.io.files import output_file

_TYPES = {"int": int, "float": float, "str": str, "bool": bool}


class _WithExpertOptions(click.Command):
    """Command that also has the sparse models' options; it reads them on first use."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *own, show_help = super().get_params(ctx)
        more = [
            click.Option([option.flag], required=option.flag == "--num-experts", type=_TYPES[option.type],
                         help=option.meaning, hidden=not option.meaning)
            for option in registered().of_upcycle
        ]  # fmt: skip
        return [*own, *more, show_help]


@click.command("upcycle", cls=_WithExpertOptions)
@click.argument("dense", type=PATH)
@click.argument("sparse", type=PATH)
@click.option("--model", default="base_moe", show_default=True, help="Sparse model to make.")
@click.option("--seed", type=int, default=1, show_default=True,
              help="Seed for the gates and for reinitialized units.")  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace SPARSE if it exists.")
def command(dense: Path, sparse: Path, model: str, seed: int, overwrite: bool, **options: object) -> None:
    """Copy the feed-forward layers of the checkpoint DENSE into experts, and write the sparse model to SPARSE.

    DENSE may come from this plugin or from stock fairseq's transformer. With the default --expert-combine, and without
    --expert-reinit-ratio, SPARSE translates exactly as DENSE until it is trained further, for example with
    `fairseq-train --continue-once SPARSE`. Adam's state is copied, too. Model options that are not given are as in
    DENSE, else as in `mtmoe options base_moe`; --task-names defaults to DENSE's languages.
    """
    output_file("SPARSE", sparse, overwrite, DENSE=dense)
    from fairseq_mtmoe import register

    expect_checkpoints(dense)
    register()
    from fairseq_mtmoe.checkpoints import file_io, rebuild
    from fairseq_mtmoe.checkpoints.rewriting import save_whole
    from fairseq_mtmoe.sparsify.upcycle import upcycle

    checkpoint = file_io.load(str(dense))
    given = {name: value for name, value in options.items() if value is not None}
    rebuild.check(dense, checkpoint, ["model"])
    with file_io.readable(str(dense)):
        result = upcycle(model, checkpoint, given, seed)
    save_whole(result, sparse)
    moments = "with" if "last_optimizer_state" in result else "without"
    click.echo(f"{sparse}: {options['num_experts']} experts per layer, {moments} the optimizer state")
