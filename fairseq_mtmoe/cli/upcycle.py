"""`mtmoe upcycle`: a sparse checkpoint from a dense one."""

import argparse
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, get_args

import click

from fairseq_mtmoe.cli._shared import PATH, expect_checkpoints, overwrite_option
from fairseq_mtmoe.core.errors import flag
from fairseq_mtmoe.core.files import output_file


class _WithExpertOptions(click.Command):
    """Command with the sparse models' options; it imports fairseq on first use."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        *params, show_help = super().get_params(ctx)
        return [*params, *map(_option, _expert_fields()), show_help]


def _expert_fields() -> list["Field[Any]"]:
    """Return the options of sparse models that dense models lack."""
    from fairseq_mtmoe import register
    from fairseq_mtmoe.core.transformer_options import FlatTransformerConfig
    from fairseq_mtmoe.slots.options import RunOptions
    from fairseq_mtmoe.training.sparsify.upcycle import sparse_models

    register()
    dense_names = {
        field.name for kind in (FlatTransformerConfig, RunOptions) for field in fields(kind)
    }
    dense_names.add("dense_updates")  # the model is sparse from the start
    by_name = {field.name: field for kind in sparse_models().values() for field in fields(kind)}
    return [field for name, field in by_name.items() if name not in dense_names]


def _option(field: "Field[Any]") -> click.Option:
    meaning = field.metadata["help"]
    kind = next(iter(get_args(field.type)), field.type)  # float of Optional[float]
    return click.Option(
        [flag(field.name)],
        type=kind,
        help=meaning,
        hidden=meaning == argparse.SUPPRESS,
        required=field.name == "num_experts",
    )


@click.command("upcycle", cls=_WithExpertOptions)
@click.argument("dense", type=PATH)
@click.argument("sparse", type=PATH)
@click.option("--model", default="base_moe", help="Sparse model to make.")
@click.option("--seed", type=int, default=1, help="Seed for the gates' weights.")
@overwrite_option
def command(
    dense: Path, sparse: Path, model: str, seed: int, overwrite: bool, **options: object
) -> None:
    """Copy the feed-forward layers of DENSE into experts; write the model to SPARSE.

    The checkpoint DENSE may come from this plugin or from stock fairseq's transformer. With the
    default --expert-combine, SPARSE translates exactly as DENSE until it is trained further, for
    example with `fairseq-train --continue-once SPARSE`. Adam's state is copied, too. Model options
    default to those of DENSE, then to those of `mtmoe options base_moe`; --task-names defaults to
    DENSE's languages.
    """
    output_file("SPARSE", sparse, overwrite, DENSE=dense)
    expect_checkpoints(dense)
    from fairseq_mtmoe.checkpoints import file_io, rebuild
    from fairseq_mtmoe.checkpoints.rewriting import save_whole
    from fairseq_mtmoe.training.sparsify.upcycle import upcycle

    checkpoint = file_io.load(str(dense))
    chosen_options = {name: value for name, value in options.items() if value is not None}
    rebuild.check(dense, checkpoint, ["model"])
    with file_io.readable(str(dense)):
        result = upcycle(model, checkpoint, chosen_options, seed)
    save_whole(result, sparse)
    moments = "with" if "last_optimizer_state" in result else "without"
    click.echo(
        f"{sparse}: {options['num_experts']} experts per layer, {moments} the optimizer state"
    )
