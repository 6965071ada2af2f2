"""`mtmoe plot`: pictures of what training logged, the figures of "Tricks for Training Sparse Translation Models", a
benchmark's, CA-MTL's and PEMT's, and of the gates and task embeddings in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from fairseq_mtmoe.analysis.questions import expert_layers, expert_tasks
from fairseq_mtmoe.analysis.rows import VALIDATION, Run, read_run, run_names
from fairseq_mtmoe.cli._runs import check_drawing, checkpoint_of, names
from fairseq_mtmoe.errors import UserError, raise_invalid

if TYPE_CHECKING:
    from fairseq_mtmoe.analysis.charts.look import Chart

EMBEDDINGS = "task_embeddings.weight"  # how the key of a model's table ends


@click.command("plot")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN…")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the pictures; by default RUN/plots.")
@click.option("--labels", callback=names, metavar="A,B,…", help="Names of the runs; by default their folders'.")
@click.option("--over", type=click.Choice(["updates", "minutes"]), default="updates", show_default=True,
              help="What perplexity and metrics are drawn over.")  # fmt: skip
@click.option("--langs", "--tasks", callback=names, metavar="A,B,…",
              help="Languages, or a benchmark's tasks, whose experts are drawn; by default the two languages with the "
              "most and the two with the least training data, or all tasks up to ten.")  # fmt: skip
@click.option("--layers", callback=names, metavar="A,B,…",
              help="Expert layers to draw, such as encoder.layers.1; by default four of one run, the last one of "
              "several runs.")  # fmt: skip
@click.option("--updates", callback=names, metavar="A,B,…",
              help="Moments of the expert distribution; by default an early, a middle and a late one.")  # fmt: skip
@click.option("--format", "suffix", type=click.Choice(["png", "pdf", "svg"]), default="png", show_default=True)
def command(
    runs: tuple[Path, ...],
    out: Path | None,
    labels: tuple[str, ...],
    over: str,
    langs: tuple[str, ...],
    layers: tuple[str, ...],
    updates: tuple[str, ...],
    suffix: str,
) -> None:
    """Draw pictures of a training run from RUN/mtmoe.jsonl; of several RUNs, to compare them.

    RUN is the --save-dir of a run of the tasks translation_heated, glue or text_to_text. The pictures: sampling
    (probability of every language pair or task, and temperature, over epochs; not of the candidates of uncertainty
    sampling), experts (which share of a language's or a task's tokens goes to which expert, early and late), perplexity
    (of translation on the validation set, per tier), metrics (of a benchmark's tasks and averages on the validation
    set), selection (of --sampling-method uncertainty: each task's share of what was trained on, and its uncertainty),
    sources (of a run that borrows: the weight of each source, layer by layer), gate_movement (how far gates are from
    their start, layer by layer); of RUN's best checkpoint, or else its
    last one, gates (if each task has one: how alike these are, layer by layer) and embeddings (a map of the task
    embeddings).
    """
    check_drawing()
    from fairseq_mtmoe.analysis.charts import save

    known = read_runs(runs, labels)
    _check_choices(known, langs, layers)
    folder = out or (runs[0] if runs[0].is_dir() else runs[0].parent) / "plots"
    moments = [_whole_number(update) for update in updates]
    drawn = 0
    for name, draw in _pictures(known, checkpoints_of(known, runs), over, langs, layers, moments).items():
        picture, path = draw(), folder / f"{name}.{suffix}"
        if isinstance(picture, str):
            click.echo(f"{name}: not drawn, {picture}")
            continue
        save(picture, path)
        click.echo(f"{name}: {path}")
        drawn += 1
    if not drawn:
        raise UserError(f"The run log of {runs[0]} holds nothing to draw yet: wait for its first epoch.")


def read_runs(paths: Sequence[Path], labels: Sequence[str] = ()) -> list[Run]:
    """All runs, each under its label.

    Raises:
        UserError: a run without a log, or not as many labels as runs.
    """
    if labels and len(labels) != len(paths):
        raise_invalid("--labels", f"{len(paths)} names, one for each run", ",".join(labels))
    return [read_run(path, name) for path, name in zip(paths, labels or run_names(paths), strict=True)]


def checkpoints_of(runs: Sequence[Run], paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """By the runs' names, what their best checkpoints hold, or their last; without those that have none to read."""
    from fairseq_mtmoe.checkpoints.file_io import peek

    found = {run.name: checkpoint_of(path) for run, path in zip(runs, paths, strict=True)}
    states = {name: peek(path) for name, path in found.items() if path is not None}
    return {name: state for name, state in states.items() if state is not None}


def task_gates(state: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]] | None:
    """The tasks of a checkpoint and, by layer, their gates (T, N, H); None where there is not one for each task."""
    from fairseq_mtmoe.checkpoints.key_maps import MOE

    gate = f"{MOE}gate.weight"
    weights = {key.removesuffix(gate): value for key, value in state["model"].items() if key.endswith(gate)}
    of_tasks = {layer: weight.float().numpy() for layer, weight in weights.items() if weight.ndim == 3}
    return (_task_names(state), of_tasks) if of_tasks else None


def task_embeddings(state: Mapping[str, Any]) -> tuple[list[str], Any] | None:
    """The tasks of a checkpoint and their embeddings (K, D); None where there are none."""
    key = next((key for key in state["model"] if key.endswith(EMBEDDINGS)), None)
    return None if key is None else (_task_names(state), state["model"][key].float().numpy())


def _task_names(state: Mapping[str, Any]) -> list[str]:
    names: list[str] = state["cfg"]["model"]["task_names"].split(",")
    return names


def _pictures(
    runs: list[Run],
    states: Mapping[str, Mapping[str, Any]],
    over: str,
    langs: Sequence[str],
    layers: Sequence[str],
    updates: Sequence[int],
) -> dict[str, Callable[[], Chart]]:
    """By name, what draws each picture, or says why there is none (a text); without those that the runs are not of."""
    from fairseq_mtmoe.analysis.charts import models
    from fairseq_mtmoe.analysis.charts import runs as charts

    def having(group: str) -> list[Run]:
        return [run for run in runs if run.of(group)]

    def sampling() -> Chart:
        chosen = having("sampling")
        if not chosen and any(run.had_candidates for run in runs):
            return "because uncertainty sampling draws candidates of all tasks alike; selection is what it trains on"
        return charts.sampling(chosen) if chosen else "because the log has no epoch yet"

    def experts() -> Chart:
        chosen = [run for run in runs if expert_layers(run)]
        if not chosen:
            return _why_no_experts(states.values())
        return charts.experts(chosen, langs, layers, updates, named=len(runs) > 1)

    def perplexity() -> Chart:
        chosen = [run for run in runs if run.of("tier", "all", metric="ppl")]
        if not chosen:
            return "because the log has no validation yet"
        if over == "minutes":
            chosen = [run for run in chosen if np.isfinite(run.of(*VALIDATION)[0].moments.minutes).any()]
        return charts.perplexity(chosen, over) if chosen else "because the log has no minutes"

    gates = {name: found for name, state in states.items() if (found := task_gates(state))}
    tables = {name: table for name, state in states.items() if (table := task_embeddings(state))}
    pictures: dict[str, tuple[object, Callable[[], Chart]]] = {
        "sampling": (True, sampling),
        "experts": (True, experts),
        "metrics": (having("task"), lambda: charts.metrics(having("task"), over)),
        "perplexity": (not having("task"), perplexity),
        "selection": (having("selection"), lambda: charts.selection(having("selection"))),
        "sources": (having("sources"), lambda: charts.sources(having("sources"))),
        "gates": (gates, lambda: models.gates(gates)),
        "gate_movement": (having("gates"), lambda: charts.movement(having("gates"))),
        "embeddings": (tables, lambda: models.embeddings(tables)),
    }
    return {name: draw for name, (is_there, draw) in pictures.items() if is_there}


def _why_no_experts(states: Iterable[Mapping[str, Any]]) -> str:
    """Whether the runs' models will have experts is told by the checkpoints' options, where these are known."""
    options: list[Any] = [(state.get("cfg") or {}).get("model") for state in states]
    if options and all(isinstance(known, dict) and "num_experts" not in known for known in options):
        kinds = dict.fromkeys(str(known.get("_name")) for known in options)
        return f"because {' and '.join(kinds)} has no experts"
    return "because the model has no expert layers yet (a dense run, or one that is still dense)"


def _check_choices(runs: Sequence[Run], langs: Sequence[str], layers: Sequence[str]) -> None:
    """Before anything is drawn: the first run with expert layers, whose rows and columns are drawn, has them.

    Where no run has any, nothing of them is drawn, and names are compared with the tasks that the runs say they have.
    """
    run = next((run for run in runs if expert_layers(run)), None)
    tasks = expert_tasks(run) if run else list(dict.fromkeys(task for run in runs for task in run.data))
    option = "--tasks" if any(run.of("task") for run in runs) else "--langs"
    for name in langs:
        if tasks and name not in tasks:
            raise_invalid(option, f"some of {', '.join(tasks)}", name)
    for name in layers:
        if run is None:
            raise_invalid("--layers", "left out where the log has no expert layers", name)
        if name not in expert_layers(run):
            raise_invalid("--layers", f"some of {', '.join(expert_layers(run))}", name)


def _whole_number(text: str) -> int:
    if not text.isdecimal():
        raise_invalid("--updates", "numbers of updates such as 10000,30000", text)
    return int(text)
