"""What a step of each of a study's shapes costs beside its dense row's: one process, the same batches, in turns.

    python benchmarks/study_steps.py captions DATA --inner 384,416,448,480   # before the study is registered
    python benchmarks/study_steps.py captions DATA --record                  # afterwards, into results/results.csv

Rows that differ in no option of the model are one shape, which has the name of the first of them. `--inner` adds dense
shapes of other inner sizes, to choose the one that costs as much as experts do.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import study_plan
import torch
from fairseq import optim, tasks
from study import check_committed, made_by
from study_figures import MULTIPLICATIONS, NO_SEED, PARAMETERS, RESULTS, STEP, lines_of_run, write_results
from study_plan import STUDIES, Study, read_table
from timing import Ratio, interleaved
from wmt15_models import training_config

from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.slots.sparse_model import model_size

BATCHES, TURNS = 3, 15
# Options that change no model, or, like groups of task ids, only how many gates it has.
_NO_SHAPE = (
    "--heating-coefficient", "--heating-updates", "--sampling-temperature", "--dense-updates", "--lr", "--task-ids",
)  # fmt: skip


class Training:
    """A model with its optimizer, and the batches that it trains on."""

    def __init__(self, arguments: list[str], data: Path, batches: list[dict[str, Any]] | None) -> None:
        cfg = training_config(str(data), *arguments)
        torch.manual_seed(1)
        self.task = tasks.setup_task(cfg.task)
        self.model, self.criterion = self.task.build_model(cfg.model), self.task.build_criterion(cfg.criterion)
        self.optimizer = optim.build_optimizer(cfg.optimizer, list(self.model.parameters()))
        self.optimizer.set_lr(1e-4)
        self.batches = batches or self._load(cfg)
        self.model.train()

    def _load(self, cfg: Any) -> list[dict[str, Any]]:
        self.task.load_dataset("train", epoch=1)
        iterator = self.task.get_batch_iterator(
            self.task.dataset("train"), max_tokens=cfg.dataset.max_tokens, seed=1, epoch=1
        ).next_epoch_itr(shuffle=True)
        return [next(iterator) for _ in range(BATCHES)]

    def step(self) -> None:
        for batch in self.batches:
            self.optimizer.zero_grad()
            _, size, _ = self.task.train_step(batch, self.model, self.criterion, self.optimizer, update_num=1)
            self.optimizer.multiply_grads(1 / size)
            self.optimizer.step()


def shapes(study: Study, inner: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    options = {"dense": shlex.split(study.options), **{row: study.options_of(row) for row in study.rows}}
    for row, given in options.items():
        for name in _NO_SHAPE:
            while name in given:
                at = given.index(name)
                given = given[:at] + given[at + 2 :]
        if given not in found.values():
            found[row] = given
    for size in inner:
        found[f"dense, {size}"] = [*found["dense"], "--encoder-ffn-embed-dim", size, "--decoder-ffn-embed-dim", size]
    return found


def costs_of(study: str, shape: str, size: dict[str, int], step: Ratio) -> list[dict[str, str]]:
    """The table's lines of a shape: its size, and its step over the dense row's, with quartiles, of 15 turns."""
    rows = [{"metric": PARAMETERS, "value": size["parameters"]}]
    rows.append({"metric": MULTIPLICATIONS, "value": f"{size['multiplications']:.10g}"})
    for metric, value in zip(STEP, (step.median, step.low, step.high), strict=True):
        rows.append({"metric": metric, "value": f"{value:.10g}", "n": TURNS})
    facts = {"row": shape, "seed": NO_SEED, "update": "", "tier": "all", **made_by()}
    return lines_of_run(study, facts, rows)


def record(new: list[dict[str, str]], results: Path, study: str) -> None:
    """Put the costs of a study into the table, in the place of those that it has."""
    metrics = {line["metric"] for line in new}
    others = [line for line in read_table(results) if line["study"] != study or line["metric"] not in metrics]
    write_results(results, [*others, *new])


@click.command()
@click.argument("name")
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--inner", default="", metavar="N,…", help="Inner sizes of further dense shapes.")
@click.option("--record", "is_recorded", is_flag=True, help="Put the study's shapes into the table of results.")
def main(name: str, data: Path, inner: str, is_recorded: bool) -> None:
    """Time a step of every shape of the study NAME on batches of the data directory DATA."""
    if inner and is_recorded:
        raise_invalid("--inner", "empty with `--record`, since its shapes are no rows of the study", inner)
    if is_recorded:
        check_committed(STUDIES / f"{name}.yaml")
    torch.set_num_threads(1)
    study = study_plan.load(STUDIES / f"{name}.yaml")
    trained: dict[str, Training] = {}
    for shape, given in shapes(study, inner.split(",") if inner else []).items():
        first = next(iter(trained.values()), None)
        trained[shape] = Training(given, data, first.batches if first else None)
    seconds = interleaved({shape: one.step for shape, one in trained.items()}, TURNS)
    lines: list[dict[str, str]] = []
    for shape, times in seconds.items():
        size, step = model_size(trained[shape].model), Ratio.of(times, seconds["dense"])
        lines += costs_of(name, shape, size, step) if shape in study.rows else []
        million, multiplications = size["parameters"] / 1e6, size["multiplications"] / 1e6
        click.echo(
            f"{shape}: step {step} of dense; {multiplications:.2f} million multiplications per token; "
            f"{million:.2f} million parameters"
        )
    if is_recorded:
        record(lines, RESULTS, name)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
