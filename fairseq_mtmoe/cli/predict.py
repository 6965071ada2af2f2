"""`mtmoe predict`: the files that the servers of GLUE and SuperGLUE take, with one load of the model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from fairseq_mtmoe.cli._quiet import progress_bar, quiet_fairseq
from fairseq_mtmoe.io.files import new_folder

MOST_NAMES = 4  # of tasks that are left out

if TYPE_CHECKING:
    from fairseq_mtmoe.evaluation.predictor import Choice, PredictedSet, Predictor


@click.command("predict")
@click.argument("data", metavar="GLUE_DIR")
@click.option("--path", "checkpoint", required=True, metavar="FILE", help="Checkpoint of --task glue or text_to_text.")
@click.option("--subset", type=click.Choice(["train", "valid", "test"]), default="test", show_default=True,
              help="Which examples to predict.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path),
              help="Folder for the files; by default predictions/CHECKPOINT-SUBSET beside the checkpoint.")  # fmt: skip
@click.option("--task-table", metavar="FILE[,FILE…]", help="Tables with further tasks, instead of the run's.")
@click.option(
    "--batch-size", "--max-sentences", type=click.IntRange(1), help="Examples in a batch; 32 without --max-tokens."
)
@click.option("--max-tokens", type=click.IntRange(1), help="Tokens in a batch.")
@click.option("--overwrite", is_flag=True, help="Replace the folder, if it has nothing but predictions.")
@click.option("--fp16", is_flag=True, help="Half precision.")
@click.option("--bf16", is_flag=True, help="Half precision with float32's range: the fastest on new GPUs.")
@click.option("--cpu", is_flag=True, help="Do not use a GPU.")
@quiet_fairseq()
def command(
    data: str, checkpoint: str, subset: str, out: Path | None, task_table: str | None, overwrite: bool, **settings: Any
) -> None:
    """Write the model's predictions for every task of GLUE_DIR that it has a head for, in one file each.

    Files are those that gluebenchmark.com (CoLA.tsv, …) and super.gluebenchmark.com (BoolQ.jsonl, …) take: zip those of
    a benchmark and submit. Each has the examples of its set in their order, by the benchmark's own index, with the
    benchmark's own labels; STS-B's numbers are within its bounds. Diagnostic sets are predicted by the task that the
    benchmark names: AX by MNLI, AX-b and AX-g by RTE. What no server takes is a table of the same form as GLUE's.
    Answers to questions about passages are the JSON that SQuAD's and MRQA's evaluations take.

    Labels are not looked at, and predictions equal those that fairseq-validate scores. Nothing is written until
    everything is predicted.
    """
    from fairseq_mtmoe import register

    register()
    from fairseq_mtmoe.data.nlu.answers import file_names
    from fairseq_mtmoe.evaluation.predictor import Predictor
    from fairseq_mtmoe.evaluation.stored import Inference

    if settings["max_tokens"] is None and settings["batch_size"] is None:
        settings["batch_size"] = 32
    inference = Inference(**settings)
    place = out if out is not None else Path(checkpoint).parent / "predictions" / f"{Path(checkpoint).stem}-{subset}"
    predictor = Predictor(data, checkpoint, inference, task_table)
    choice = predictor.choose(subset)
    with new_folder(place, file_names(predictor.table) if overwrite else ()) as folder:
        counts = predict_sets(predictor, choice.sets, folder)
    show(choice, counts, subset, place)


def predict_sets(predictor: Predictor, sets: Sequence[PredictedSet], folder: Path) -> list[int]:
    """Read all sets, then predict and write one after the other, with a progress bar; how many examples each has."""
    with progress_bar("examples") as progress:
        bar = progress.add_task("reading", total=None)
        read = predictor.read(sets)
        progress.update(bar, total=sum(one.num_rows for one in read))
        for chosen, examples in zip(sets, read, strict=True):
            progress.update(bar, description=chosen.key)
            content = predictor.predict(chosen, examples, lambda count: progress.advance(bar, count))
            (folder / chosen.submission.file).write_bytes(content.encode("utf-8"))
    return [len(examples) for examples in read]


def show(choice: Choice, counts: Sequence[int], subset: str, folder: Path) -> None:
    """Print what was predicted by which head, and what was not."""
    table = Table("file", "task", "head")
    table.add_column("examples", justify="right")
    for chosen, count in zip(choice.sets, counts, strict=True):
        table.add_row(chosen.submission.file, chosen.key, chosen.head, f"{count:,}")
    console = Console()
    console.print(table)
    console.print(str(folder), soft_wrap=True, highlight=False, markup=False)
    for names, what in (
        (choice.headless, "the model has no head for"),
        (choice.absent, f"there is no {subset} data of"),
    ):
        if names:
            more = f" and {len(names) - MOST_NAMES} others" if len(names) > MOST_NAMES else ""
            click.echo(f"Left out: {what} {', '.join(names[:MOST_NAMES])}{more}.", err=True)
