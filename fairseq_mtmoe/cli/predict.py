"""`mtmoe predict`: submission files for the GLUE and SuperGLUE servers.

The model is loaded once.
"""

from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from fairseq_mtmoe.cli._shared import (
    PATH,
    batch_options,
    expect_checkpoints,
    overwrite_option,
    precision_options,
    progress_bar,
    quiet_fairseq,
    say,
)
from fairseq_mtmoe.core.errors import shortened
from fairseq_mtmoe.core.files import new_folder
from fairseq_mtmoe.core.tables import Table


@click.command("predict")
@click.argument("data", metavar="GLUE_DIR")
@click.option(
    "--path",
    "checkpoint",
    required=True,
    metavar="FILE",
    help="Checkpoint of --task glue or text_to_text.",
)
@click.option(
    "--subset",
    type=click.Choice(["train", "valid", "test"]),
    default="test",
    help="Examples to predict.",
)
@click.option(
    "--out",
    type=PATH,
    help="Folder for the files; by default predictions/CHECKPOINT-SUBSET beside the checkpoint.",
)
@click.option(
    "--task-table", metavar="FILE[,FILE…]", help="Additional task tables, in place of the run's."
)
@batch_options
@overwrite_option
@precision_options
@quiet_fairseq()
def command(
    data: str,
    checkpoint: str,
    subset: str,
    out: Path | None,
    task_table: str | None,
    overwrite: bool,
    **settings: Any,
) -> None:
    """Write predictions for all tasks of GLUE_DIR that the model has a head for.

    Each task has one file. The files are the submissions of gluebenchmark.com (CoLA.tsv, …) and
    super.gluebenchmark.com (BoolQ.jsonl, …): zip a benchmark's files and submit them. Each file
    keeps the order of examples, with the benchmark's indices and labels. Diagnostic sets are
    predicted with the head that the benchmark names: MNLI for AX, RTE for AX-b and AX-g. Other
    tasks get a table in GLUE's form; span answers get the JSON of SQuAD's and MRQA's evaluation
    scripts. Labels in the data are ignored. Files are written after the last prediction.
    """
    expect_checkpoints(checkpoint)
    from fairseq_mtmoe.nlu.data.answers import file_names
    from fairseq_mtmoe.nlu.predictor import Predictor
    from fairseq_mtmoe.translation.decode.stored import Inference

    if settings["max_tokens"] is None and settings["batch_size"] is None:
        settings["batch_size"] = 32
    where = out or Path(checkpoint).parent / "predictions" / f"{Path(checkpoint).stem}-{subset}"
    predictor = Predictor(data, checkpoint, Inference(**settings), task_table)
    choice = predictor.choose(subset)
    rows = []
    with (
        new_folder(where, file_names(predictor.table) if overwrite else ()) as folder,
        progress_bar("examples") as progress,
    ):
        bar = progress.add_task("reading", total=None)
        tokenized = predictor.read(choice.sets)
        progress.update(bar, total=sum(examples.num_rows for examples in tokenized))
        for chosen, examples in zip(choice.sets, tokenized, strict=True):
            progress.update(bar, description=chosen.key)
            content = predictor.predict(chosen, examples, partial(progress.advance, bar))
            (folder / chosen.submission.file).write_bytes(content.encode("utf-8"))
            rows.append((chosen.submission.file, chosen.key, chosen.head, f"{len(examples):,}"))
    Console().print(Table(["file", "task", "head", "examples"], rows, texts=3).on_screen())
    say([where])
    left_out = {
        "the model has no head for": choice.headless,
        f"GLUE_DIR has no {subset} data of": choice.absent,
    }
    for what, names in left_out.items():
        if names:
            click.echo(f"Left out: {what} {shortened(names)}.", err=True)
