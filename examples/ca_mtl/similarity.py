"""Similarity of tasks in models of `--task glue` (CA-MTL, equation 7 and figure 6).

    python examples/ca_mtl/similarity.py runs/mtl runs/ca_mtl \\
        --single runs/single-cola --single runs/single-rte

X_i has a row for each token of task i, without padding: its input of the first block. U_i D_i U_iᵀ
is the best approximation of X_iᵀX_i (not centred) of the least rank that holds 99% of its spectrum.
The similarity of two tasks is ‖(U_i D_i^½)ᵀ U_j D_j^½‖ / (‖U_i D_i^½‖ ‖U_j D_j^½‖): 0 in orthogonal
subspaces, 1 along one line.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import numpy as np
from tabulate import tabulate

from fairseq_mtmoe import register
from fairseq_mtmoe.nlu.predictor import Predictor
from fairseq_mtmoe.report.score_files import read_scores, score_files
from fairseq_mtmoe.translation.decode.stored import Inference

HELD = 0.99  # share of the spectrum
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


class _Reached(Exception):
    """Raised at the first block to end the forward pass."""


def first_inputs(model: Any, net_input: dict[str, Any]) -> np.ndarray:
    """Return the first block's input rows (N, H) without padding and prompts."""
    inputs = []

    def stop(block: Any, arguments: tuple[Any, ...]) -> None:
        x, _, batch = arguments
        inputs.append(batch.pad(x).detach())
        raise _Reached

    hook = model.encoder.layers[0].register_forward_pre_hook(stop)
    with suppress(_Reached):
        model(**net_input)
    hook.remove()
    is_real_BL = net_input["src_tokens"].ne(model.encoder.config.pad_token_id)
    x_BLH = inputs[0][:, : is_real_BL.shape[1]]  # prompts stand behind the text
    return x_BLH[is_real_BL].double().cpu().numpy()


def covariance(predictor: Predictor, task: str, subset: str) -> np.ndarray:
    """Return X'X (H, H) of a task's sets."""
    width = predictor.model.encoder.config.hidden_size
    sums_HH = np.zeros((width, width))
    for dataset in predictor.choose(subset).sets:
        if not dataset.name == dataset.head == task:
            continue
        (examples,) = predictor.read([dataset])
        for sample in predictor.batches(dataset, examples):
            x_NH = first_inputs(predictor.model, sample["net_input"])
            sums_HH += x_NH.T @ x_NH
    if not sums_HH.any():
        raise click.ClickException(f"The data has no {subset} examples of {task}.")
    return sums_HH


def factor(sums_HH: np.ndarray) -> np.ndarray:
    """Return U D^½, (H, R), where R is the least rank that holds 99% of the spectrum."""
    values_H, vectors_HH = np.linalg.eigh(sums_HH)
    values_H = values_H[::-1].clip(min=0)
    shares_H = np.cumsum(values_H) / values_H.sum()
    rank = int(np.searchsorted(shares_H, HELD)) + 1
    return vectors_HH[:, ::-1][:, :rank] * np.sqrt(values_H[:rank])


def similarity(first_HR: np.ndarray, second_HS: np.ndarray) -> float:
    """Return the covariance similarity of two tasks by their factors."""
    lengths = np.linalg.norm(first_HR) * np.linalg.norm(second_HS)
    return float(np.linalg.norm(first_HR.T @ second_HS) / lengths)


def means(factors: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> dict[str, float]:
    """Return each task's mean similarity to the other tasks of `others`."""
    result = {}
    for task, factor_HR in factors.items():
        similarities = [similarity(factor_HR, others[name]) for name in others if name != task]
        result[task] = float(np.mean(similarities))
    return result


def scores_of(run: Path) -> dict[str, float]:
    """Return a run's scores by task; empty if it has none."""
    if not score_files(run):
        return {}
    return {task: row.figure for task, row in read_scores(run).main.items()}


def open_run(run: Path, data: str) -> Predictor:
    """Return the predictor of a run's best checkpoint, or of its last."""
    best, last = run / "checkpoint_best.pt", run / "checkpoint_last.pt"
    checkpoint = best if best.exists() else last
    return Predictor(data, str(checkpoint), Inference(64))


@click.command()
@click.argument("runs", nargs=-1, required=True, type=FOLDER)
@click.option("--single", multiple=True, type=FOLDER, help="Run of one task, once for each task.")
@click.option("--data", required=True, help="Data directory of the benchmark.")
@click.option("--subset", default="valid", show_default=True)
@click.option(
    "--out", type=click.Path(path_type=Path), help="Also write the figures to this JSON file."
)
def main(
    runs: tuple[Path, ...], single: tuple[Path, ...], data: str, subset: str, out: Path | None
) -> None:
    """Print similarities of tasks in multi-task RUNS and in single-task models."""
    register()
    models: dict[str, dict[str, np.ndarray]] = {}
    scores = {run.name: scores_of(run) for run in runs}
    for run in runs:
        predictor = open_run(run, data)
        models[run.name] = {
            task: factor(covariance(predictor, task, subset)) for task in predictor.model.heads
        }
    alone: dict[str, np.ndarray] = {}
    alone_scores: dict[str, float] = {}
    for run in single:
        predictor = open_run(run, data)
        (task,) = predictor.model.heads
        alone[task] = factor(covariance(predictor, task, subset))
        alone_scores |= scores_of(run)
    written: dict[str, Any] = {}
    for name, factors in models.items():
        tasks = list(factors)
        table = [[similarity(factors[row], factors[column]) for column in tasks] for row in tasks]
        figures = {"similarities": table, "mean": means(factors, factors)}
        if alone:
            shared = {task: factors[task] for task in alone}
            figures["mean of single-task models"] = means(alone, alone)
            figures["mean in this model"] = means(shared, shared)
            pairs = {task: (scores[name].get(task), alone_scores.get(task)) for task in alone}
            figures["gain in percent"] = {
                task: 100 * (a / b - 1) for task, (a, b) in pairs.items() if a and b
            }
        written[name] = {"tasks": tasks, **figures}
        click.echo(f"\n{name}\n" + tabulate(table, tasks, showindex=tasks, floatfmt=".4f"))
        columns = {title: column for title, column in figures.items() if isinstance(column, dict)}
        rows = [[task, *(column.get(task) for column in columns.values())] for task in tasks]
        click.echo("\n" + tabulate(rows, ["task", *columns], floatfmt=".4f"))
    if out is not None:
        out.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
