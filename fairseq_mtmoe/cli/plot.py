"""`mtmoe plot`: charts of a run log, and of the gates and task embeddings in a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from fairseq_mtmoe.analysis.questions import expert_layers, expert_tasks
from fairseq_mtmoe.analysis.rows import VALIDATION, Run, read_run, run_names
from fairseq_mtmoe.cli._shared import PATH, check_drawing, checkpoint_of, list_option
from fairseq_mtmoe.errors import UserError, raise_invalid

if TYPE_CHECKING:
    from fairseq_mtmoe.analysis.charts.look import Chart

EMBEDDINGS = "task_embeddings.weight"  # suffix of the parameter's key


@click.command("plot")
@click.argument("runs", nargs=-1, required=True, type=PATH, metavar="RUN…")
@click.option("--out", type=PATH, help="Folder for the charts; by default RUN/plots.")
@list_option("--labels", metavar="A,B,…", help="Names of the runs; by default their folder names.")
@click.option("--over", type=click.Choice(["updates", "minutes"]), default="updates", show_default=True,
              help="x-axis of the charts of perplexity and metrics.")  # fmt: skip
@list_option("--langs", "--tasks", metavar="A,B,…",
              help="Languages or benchmark tasks in the chart of experts; by default the two languages with the most "
              "and the two with the least training data, or up to ten tasks.")  # fmt: skip
@list_option("--layers", metavar="A,B,…",
              help="Expert layers to plot, such as encoder.layers.1; by default four layers for one run, the last "
              "layer for several.")  # fmt: skip
@list_option("--updates", metavar="A,B,…",
              help="Updates at which to plot the distribution over experts; by default an early, a middle and a late "
              "one.")  # fmt: skip
@click.option("--format", "suffix", type=click.Choice(["png", "pdf", "svg"]), default="png", show_default=True)
def command(
    runs: tuple[Path, ...], out: Path | None, labels: tuple[str, ...], over: str, langs: tuple[str, ...],
    layers: tuple[str, ...], updates: tuple[str, ...], suffix: str,
) -> None:  # fmt: skip
    """Plot a training run from its log, RUN/mtmoe.jsonl; several RUNs are compared.

    RUN is the --save-dir of a run of the tasks translation_heated, glue or text_to_text. Charts from the log:

    \b
    sampling       probability of each language pair or task, and temperature, by epoch
    experts        share of a language's or task's tokens per expert, early and late
    perplexity     validation perplexity by tier
    metrics        validation metrics of benchmark tasks
    selection      uncertainty sampling: each task's share and uncertainty
    sources        PEMT: weight of each source task, by layer
    gate_movement  distance of the gates from their initial values

    Charts from RUN's best checkpoint, or else its last one:

    \b
    gates          similarity of the tasks' gates, by layer
    embeddings     map of the task embeddings
    """
    check_drawing()
    from fairseq_mtmoe.analysis.charts import save

    known = read_runs(runs, labels)
    _check_choices(known, langs, layers)
    folder = out or (runs[0] if runs[0].is_dir() else runs[0].parent) / "plots"
    if wrong := [update for update in updates if not update.isdecimal()]:
        raise_invalid("--updates", "numbers of updates such as 10000,30000", wrong[0])
    pictures = _pictures(known, checkpoints_of(known, runs), over, langs, layers, [*map(int, updates)])
    for name, (is_there, draw, why) in pictures.items():
        path = folder / f"{name}.{suffix}"
        if is_there:
            save(draw(), path)
        if is_there or why:
            click.echo(f"{name}: {path}" if is_there else f"{name}: not drawn, {why}")
    if not any(is_there for is_there, _, _ in pictures.values()):
        raise UserError(f"The run log of {runs[0]} has nothing to plot yet: wait for its first epoch.")


def read_runs(paths: Sequence[Path], labels: Sequence[str] = ()) -> list[Run]:
    """Read all runs, each with its label (UserError: a run has no log, or the number of labels differs)."""
    if labels and len(labels) != len(paths):
        raise_invalid("--labels", f"{len(paths)} names, one for each run", ",".join(labels))
    return [read_run(path, name) for path, name in zip(paths, labels or run_names(paths), strict=True)]


def checkpoints_of(runs: Sequence[Run], paths: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Return the content of each run's best or last checkpoint by run name, without runs that have none."""
    from fairseq_mtmoe.checkpoints.file_io import peek

    found = {run.name: checkpoint_of(path) for run, path in zip(runs, paths, strict=True)}
    states = {name: peek(path) for name, path in found.items() if path is not None}
    return {name: state for name, state in states.items() if state is not None}


def task_gates(state: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]] | None:
    """Return a checkpoint's tasks and their gates (T, N, H) by layer; None without task gates."""
    from fairseq_mtmoe.checkpoints.key_maps import MOE

    gate = f"{MOE}gate.weight"
    weights = {key.removesuffix(gate): value for key, value in state["model"].items() if key.endswith(gate)}
    of_tasks = {layer: weight.float().numpy() for layer, weight in weights.items() if weight.ndim == 3}
    return (state["cfg"]["model"]["task_names"].split(","), of_tasks) if of_tasks else None


def task_embeddings(state: Mapping[str, Any]) -> tuple[list[str], Any] | None:
    """Return a checkpoint's tasks and their embeddings (K, D); None without task embeddings."""
    key = next((key for key in state["model"] if key.endswith(EMBEDDINGS)), None)
    if key is None:
        return None
    return state["cfg"]["model"]["task_names"].split(","), state["model"][key].float().numpy()


def _pictures(
    runs: list[Run], states: Mapping[str, Mapping[str, Any]], over: str, langs: Sequence[str], layers: Sequence[str],
    updates: Sequence[int],
) -> dict[str, tuple[object, Callable[[], Chart], str]]:  # fmt: skip
    """Return by chart name: whether it has data, the function that draws it, and the reason if it has none."""
    from fairseq_mtmoe.analysis.charts import models
    from fairseq_mtmoe.analysis.charts import runs as charts

    groups = ("sampling", "task", "sources", "gates")
    of = {group: [run for run in runs if run.of(group)] for group in groups}
    selecting = [run for run in runs if run.of("selection", metric="share")]
    sparse = [run for run in runs if expert_layers(run)]
    validated = [run for run in runs if run.of("tier", "all", metric="ppl")]
    timed = [run for run in validated if over != "minutes" or np.isfinite(run.of(*VALIDATION)[0].moments.minutes).any()]
    gates = {name: found for name, state in states.items() if (found := task_gates(state))}
    tables = {name: table for name, state in states.items() if (table := task_embeddings(state))}
    no_sampling, no_perplexity = "the log has no epoch yet", "the log has no validation yet"
    if any(run.had_candidates for run in runs):
        no_sampling = "uncertainty sampling draws candidates of all tasks alike; see the chart of selection"
    if validated:
        no_perplexity = "the log has no minutes"
    return {
        "sampling": (of["sampling"], lambda: charts.sampling(of["sampling"]), f"because {no_sampling}"),
        "experts": (sparse, lambda: charts.experts(sparse, langs, layers, updates, named=len(runs) > 1),
                    f"because {_why_no_experts(states.values())}"),
        "metrics": (of["task"], lambda: charts.metrics(of["task"], over), ""),
        "perplexity": (timed and not of["task"], lambda: charts.perplexity(timed, over),
                       "" if of["task"] else f"because {no_perplexity}"),
        "selection": (selecting, lambda: charts.selection(selecting), ""),
        "sources": (of["sources"], lambda: charts.sources(of["sources"]), ""),
        "gates": (gates, lambda: models.gates(gates), ""),
        "gate_movement": (of["gates"], lambda: charts.movement(of["gates"]), ""),
        "embeddings": (tables, lambda: models.embeddings(tables), ""),
    }  # fmt: skip


def _why_no_experts(states: Iterable[Mapping[str, Any]]) -> str:
    """Return the reason for missing expert layers, from the checkpoints' options if known."""
    options: list[Any] = [(state.get("cfg") or {}).get("model") for state in states]
    if options and all(isinstance(known, dict) and "num_experts" not in known for known in options):
        kinds = dict.fromkeys(str(known.get("_name")) for known in options)
        return f"{' and '.join(kinds)} has no experts"
    return "the model has no expert layers yet (a dense run, or one that is still dense)"


def _check_choices(runs: Sequence[Run], langs: Sequence[str], layers: Sequence[str]) -> None:
    """Raise `UserError` for names unknown in the first run with experts, or without one in the runs' data."""
    run = next((run for run in runs if expert_layers(run)), None)
    tasks = expert_tasks(run) if run else list(dict.fromkeys(task for run in runs for task in run.data))
    option = "--tasks" if any(run.of("task") for run in runs) else "--langs"
    for name in langs:
        if tasks and name not in tasks:
            raise_invalid(option, f"some of {', '.join(tasks)}", name)
    for name in layers:
        if run is None:
            raise_invalid("--layers", "left out if the log has no expert layers", name)
        if name not in expert_layers(run):
            raise_invalid("--layers", f"some of {', '.join(expert_layers(run))}", name)
