"""`mtmoe merge`: a model that borrows from sources, with its gates folded into what they weigh."""

from pathlib import Path

import click

from fairseq_mtmoe.cli._shared import PATH, quiet_fairseq
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import output_file


@click.command("merge")
@click.argument("checkpoint", type=PATH)
@click.argument("out", type=PATH)
@click.option("--overwrite", is_flag=True, help="Replace OUT if it exists.")
@quiet_fairseq()
def command(checkpoint: Path, out: Path, overwrite: bool) -> None:
    """Write to OUT the CHECKPOINT of a run of --pemt-stage target without its gates, under whose weights it borrows.

    OUT says what CHECKPOINT says, and costs what a model without sources does: LoRA is part of the feed-forward layers
    then, and bottlenecks are one for each layer, as wide as all together. It is for fairseq-generate, mtmoe predict and
    mtmoe evaluate, and has no optimizer's state. Gates of another --gate-input than correlation cannot be folded: their
    weights are each text's own.
    """
    output_file("OUT", out, overwrite, CHECKPOINT=checkpoint)
    from fairseq_mtmoe import register

    register()
    from fairseq_mtmoe.checkpoints import file_io, rebuild
    from fairseq_mtmoe.checkpoints.key_maps import AVERAGES
    from fairseq_mtmoe.checkpoints.rebuild import model_options
    from fairseq_mtmoe.checkpoints.rewriting import save_whole
    from fairseq_mtmoe.models.pemt.merging import Merger

    state = file_io.load(str(checkpoint))
    rebuild.check(checkpoint, state, ["model"])
    options = model_options(state)
    if options is None:
        raise UserError(f"`{checkpoint}` must be a checkpoint of a model that borrows from sources, but is not.")
    merger = Merger.of(options)
    weights = merger.weights(state["model"])
    extra = dict(state.get("extra_state") or {})
    extra |= {name: merger.merged(extra[name]) for name in AVERAGES if extra.get(name)}
    result = {name: value for name, value in state.items() if name != "last_optimizer_state"}
    result |= {"model": merger.merged(state["model"]), "extra_state": extra}
    result["cfg"] = {**state["cfg"], "model": {**options, **merger.options()}}
    save_whole(result, out)
    names = [source.task for source in merger.metadata.sources]
    means = [sum(column) / len(weights) for column in zip(*(each.tolist() for each in weights.values()), strict=True)]
    shares = ", ".join(f"{name} {100 * mean:.0f}%" for name, mean in zip(names, means, strict=True))
    click.echo(f"{out}: {shares}, in the mean over {len(weights)} layers, without an optimizer's state")
