"""`mtmoe merge`: a mixture of adapters, merged into one model without gates."""

from pathlib import Path

import click

from fairseq_mtmoe.cli._shared import PATH, expect_checkpoints, overwrite_option, quiet_fairseq
from fairseq_mtmoe.core.files import output_file


@click.command("merge")
@click.argument("checkpoint", type=PATH)
@click.argument("out", type=PATH)
@overwrite_option
@quiet_fairseq()
def command(checkpoint: Path, out: Path, overwrite: bool) -> None:
    """Merge the adapters in CHECKPOINT, and write the model without gates to OUT.

    CHECKPOINT comes from a run of --pemt-stage target. OUT computes the same as CHECKPOINT,
    at the cost of a model without sources. LoRA is added to the feed-forward layers; each layer's
    bottlenecks become one, as wide as all together. OUT has no optimizer state and is for
    fairseq-generate, mtmoe predict and mtmoe evaluate. Gates can be merged only with --gate-input
    correlation: other gates weigh the sources differently for each text.
    """
    output_file("OUT", out, overwrite, CHECKPOINT=checkpoint)
    expect_checkpoints(checkpoint)
    from fairseq_mtmoe.checkpoints import file_io, rebuild
    from fairseq_mtmoe.checkpoints.key_maps import AVERAGES
    from fairseq_mtmoe.checkpoints.rebuild import model_options
    from fairseq_mtmoe.checkpoints.rewriting import save_whole
    from fairseq_mtmoe.pemt.merging import Merger

    state = file_io.load(str(checkpoint))
    rebuild.check(checkpoint, state, ["model"])
    options = model_options(state) or {}
    merger = Merger.of(options)
    extra = dict(state.get("extra_state") or {})
    extra |= {name: merger.merged(extra[name]) for name in AVERAGES if extra.get(name)}
    result = {name: value for name, value in state.items() if name != "last_optimizer_state"}
    result |= {"model": merger.merged(state["model"]), "extra_state": extra}
    result["cfg"] = {**state["cfg"], "model": {**options, **merger.options()}}
    save_whole(result, out)
    names = ", ".join(source.task for source in merger.metadata.sources)
    click.echo(f"{out}: adapters of {names}; without optimizer state")
