"""`mtmoe similarity`: similarity of tasks in models of `--task glue`, by covariances of first-block inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from fairseq_mtmoe.analysis.rows import run_names
from fairseq_mtmoe.analysis.run_log import provenance
from fairseq_mtmoe.analysis.score_files import JSON_FILE, SCORES, read_scores
from fairseq_mtmoe.analysis.similarity import ModelSimilarities, TaskInputs, notes, tables, to_json, to_markdown
from fairseq_mtmoe.cli._shared import (
    CHECKPOINTS,
    PATH,
    check_drawing,
    checkpoint_of,
    list_option,
    quiet_fairseq,
    say,
    show,
)
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.io.files import check_writable, write_text

if TYPE_CHECKING:
    from torch import Tensor

    from fairseq_mtmoe.evaluation.predictor import PredictedSet, Predictor

NAME = "similarity"
SINGLE = "single-task"


@dataclass(frozen=True)
class LookedAt:
    """A run's checkpoint with the tasks of its heads, its encoder's width and its data directory."""

    run: Path
    checkpoint: Path
    tasks: tuple[str, ...]
    width: int
    data: str

    @property
    def scores(self) -> dict[str, float]:
        """Return the tasks' scores from `fairseq-validate --results-path RUN/scores`; empty without."""
        folder = self.checkpoint.parent
        if not (folder / SCORES).is_dir() and not (folder / JSON_FILE).is_file():
            return {}
        return {task: row.figure for task, row in read_scores(folder).own.items()}


@click.command("similarity")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN [SINGLE_TASK_RUN…]")
@click.option("--data", metavar="GLUE_DIR", help="Data directory; by default the one that RUN was trained on.")
@click.option("--subset", type=click.Choice(["train", "valid", "test"]), default="valid", show_default=True,
              help="Examples to use; all of the subset are read.")  # fmt: skip
@list_option("--tasks", "chosen", metavar="A,B,…",
              help="Tasks to compare; by default the tasks that all models have.")  # fmt: skip
@click.option("--out", type=PATH, help=f"Folder for the results; by default RUN/{NAME}.")
@click.option("--batch-size", type=click.IntRange(1), default=64, show_default=True, help="Examples in a batch.")
@click.option("--cpu", is_flag=True, help="Do not use a GPU.")
@quiet_fairseq()
def command(
    runs: tuple[Path, ...], data: str | None, subset: str, chosen: tuple[str, ...], out: Path | None, batch_size: int,
    cpu: bool,
) -> None:  # fmt: skip
    """Compare tasks by the covariances of their inputs, in models of several tasks and in single-task models.

    \b
    mtmoe similarity runs/ca_mtl
    mtmoe similarity runs/mtl runs/ca_mtl runs/single-*

    RUN is the folder of a run of --task glue, or a checkpoint; of a folder the best checkpoint is read, else the last.
    Runs of several tasks are the models to compare; a run of one task is that task's single-task model. All figures are
    for the same tasks: those in every model which also have a single-task model, if any is given.

    Prints tables of covariance similarities (CA-MTL, equation 7) and writes similarity.json, similarity.md and
    similarity.png. With single-task runs and scores (fairseq-validate --results-path RUN/scores) it also writes
    gains.png, the paper's figure 6.
    """
    together, alone = sorted_out([look_at(run) for run in runs])
    tasks = common_tasks(together, alone, chosen)
    folder = out if out is not None else together[0].checkpoint.parent / NAME
    check_writable(folder)
    check_drawing()
    from fairseq_mtmoe import register
    from fairseq_mtmoe.analysis.charts import models as charts
    from fairseq_mtmoe.analysis.charts import save

    register()
    data = data if data is not None else together[0].data
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), TextColumn("{task.completed} examples"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        measure = partial(inputs_of, data=data, subset=subset, batch_size=batch_size, cpu=cpu, progress=progress)
        models = [
            ModelSimilarities(name, [str(one.checkpoint)], measure(one, tasks), one.scores)
            for name, one in zip(run_names([one.run for one in together]), together, strict=True)
        ]
        single = None
        if alone:
            inputs = {task: measure(alone[task], [task])[task] for task in tasks}
            scores = {task: of[task] for task in tasks if task in (of := alone[task].scores)}
            single = ModelSimilarities(SINGLE, [str(alone[task].checkpoint) for task in tasks], inputs, scores)
    settings = {"data": data, "subset": subset, **provenance()}
    for title, table in tables(models, single).items():
        show(table.on_screen(title))
    say(notes(single))
    write_text(folder / f"{NAME}.md", to_markdown(models, single, settings))
    write_text(folder / f"{NAME}.json", to_json(models, single, settings))
    pictures = {f"{NAME}.png": charts.similarity([*models, *([single] if single else [])])}
    if single is not None and any(model.improvements(single) for model in models):
        pictures["gains.png"] = charts.improvement(models, single)
    for name, picture in pictures.items():
        save(picture, folder / name)
    for name in (f"{NAME}.json", f"{NAME}.md", *pictures):
        click.echo(folder / name)


def look_at(run: Path) -> LookedAt:
    """Read a run's checkpoint (UserError: there is none, or it is of another task)."""
    from fairseq_mtmoe.checkpoints.file_io import peek

    checkpoint = run if run.is_file() else checkpoint_of(run)
    if checkpoint is None:
        rule = f"a run's folder with {' or '.join(CHECKPOINTS)}, or a checkpoint"
        raise UserError(f"`{run}` must be {rule}, but is none.")
    cfg = (peek(checkpoint) or {}).get("cfg") or {}
    try:
        tasks, encoder = json.loads(cfg["model"]["heads"]), json.loads(cfg["model"]["encoder"])
        return LookedAt(run, checkpoint, tuple(tasks), int(encoder["hidden_size"]), str(cfg["task"]["data"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"`{checkpoint}` must be a checkpoint of a run of --task glue, but is none.") from error


def sorted_out(known: Sequence[LookedAt]) -> tuple[list[LookedAt], dict[str, LookedAt]]:
    """Split runs into multi-task models and single-task models by task (UserError: they do not fit together)."""
    together = [one for one in known if len(one.tasks) > 1]
    if not together:
        raise_invalid("RUN", "a run of several tasks", str(known[0].run))
    alone: dict[str, LookedAt] = {}
    for one in known:
        if one.width != known[0].width:
            rule = f"a run with an encoder of width {known[0].width}, as {known[0].run}"
            raise_invalid(str(one.run), rule, one.width)
        if len(one.tasks) == 1:
            other = alone.setdefault(one.tasks[0], one)
            if other is not one:
                raise UserError(
                    f"Each task must have one single-task run, but {other.run} and {one.run} are of {one.tasks[0]}."
                )
    return together, alone


def common_tasks(together: Sequence[LookedAt], alone: Mapping[str, LookedAt], chosen: Sequence[str]) -> list[str]:
    """Return the tasks to compare; print those left out (UserError: fewer than two, or a chosen one is not common)."""
    common = [task for task in together[0].tasks if all(task in one.tasks for one in together)]
    common = [task for task in common if task in alone or not alone]
    for task in chosen:
        if task not in common:
            raise_invalid("--tasks", f"tasks that all models have ({', '.join(common)})", task)
    tasks = [task for task in common if task in chosen or not chosen]
    if len(tasks) < 2:
        raise UserError(f"The models must share at least two tasks, but share {', '.join(tasks) or 'none'}.")
    every = dict.fromkeys(task for one in (*together, *alone.values()) for task in one.tasks)
    left_out = [task for task in every if task not in common]
    if left_out:
        click.echo(f"Left out, as not all models have them: {', '.join(left_out)}.", err=True)
    return tasks


def inputs_of(
    one: LookedAt, tasks: Sequence[str], data: str, subset: str, batch_size: int, cpu: bool, progress: Progress
) -> dict[str, TaskInputs]:
    """Return the tasks' input covariances in a model (UserError: the data directory lacks a task)."""
    from fairseq_mtmoe.evaluation.predictor import Predictor
    from fairseq_mtmoe.evaluation.stored import Inference

    predictor = Predictor(data, str(one.checkpoint), Inference(batch_size, cpu=cpu))
    sets = predictor.choose(subset).sets
    found: dict[str, TaskInputs] = {}
    for task in tasks:
        own = [chosen for chosen in sets if chosen.name == chosen.head == task]
        if not own:
            raise UserError(f"`{data}` must have {subset} data of {task}, but has none; leave it out with `--tasks`.")
        bar = progress.add_task(f"{one.run.name}: {task}", total=None)
        found[task] = covariance_sums(predictor, own, partial(progress.advance, bar))
        progress.remove_task(bar)
    return found


def covariance_sums(predictor: Predictor, sets: Iterable[PredictedSet], advance: Callable[[int], None]) -> TaskInputs:
    """Return Σ x xᵀ of the first block's inputs over the tokens of one task's sets.

    A text that occurs in several of the model's input sequences counts in each.
    """
    import torch

    width, tokens = predictor.model.encoder.config.hidden_size, 0
    sums_HH = np.zeros((width, width))
    for chosen in sets:
        (examples,) = predictor.read([chosen])
        for sample in predictor.batches(chosen, examples):
            with torch.no_grad():
                x_NH = first_inputs(predictor.model, sample["net_input"]).double()
                sums_HH += (x_NH.T @ x_NH).cpu().numpy()
            tokens += len(x_NH)
            advance(len(sample["id"]))
        if not np.isfinite(sums_HH).all():
            raise UserError(f"`{predictor.checkpoint}` must give finite values for {chosen.key}, but does not.")
    return TaskInputs(sums_HH, tokens)


class _Reached(Exception):
    """Raised at the first block to stop the forward pass."""


def first_inputs(model: Any, net_input: dict[str, Any]) -> Tensor:
    """Return the first encoder block's input rows (N, H) without padding and prompts."""
    found: list[Tensor] = []

    def reached(block: Any, arguments: tuple[Any, ...]) -> None:
        x, _, batch = arguments
        found.append(batch.pad(x))
        raise _Reached

    hook = model.encoder.layers[0].register_forward_pre_hook(reached)
    try:
        with suppress(_Reached):
            model(**net_input)
    finally:
        hook.remove()
    (x_BLH,) = found
    is_real_BL = net_input["src_tokens"].ne(model.encoder.config.pad_token_id)
    real_NH: Tensor = x_BLH[:, : is_real_BL.shape[1]][is_real_BL]  # PEMT's prompts stand behind the text
    return real_NH
