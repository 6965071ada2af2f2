"""Trains MT-TaG, MT-Switch, MT-Dense and Single-Task on the same small tasks from one pretrained encoder.

Every run is one `fairseq-train` on one core. Runs of a seed see the same examples of each task, in the same number of
updates; rows differ in the model alone. The results are written after each.

    python benchmarks/compare_glue.py GLUE_DIR encoder.pt --runs runs/glue

A run that stands in `results/training_glue.json` is left out. Runs on new tasks (`--stage 2`) begin with the
checkpoints of the mixtures, which must be in the same folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from glue_runs import BATCH, CHECKPOINT, Plan, Run, command_of, run_all, run_one
from measure import RESULTS

RESULT = RESULTS / "training_glue.json"
# Training examples of each task of the mixture. Shares are those of temperature 2: by the square roots.
SIZES = {
    "rte": 2490, "mrpc": 3668, "cola": 8551, "stsb": 5749, "cb": 250, "copa": 400, "wic": 5428, "boolq": 2500,
    "sst2": 4041, "mnli": 1500,
}  # fmt: skip
CAPPED = {"sst2": 0.06}  # of the mixture's tasks, the share of the examples that is trained on
TEMPERATURE = 2.0
SINGLE, DENSE, SWITCH, TAG = "single", "mt_dense", "mt_switch", "mt_tag"
FEW_SHOT = {"sick": "mnli", "rotten_tomatoes": "sst2"}  # a new task, and the related one whose gate it begins with
SHARES = (0.01, 0.1)


def mixture_shares() -> dict[str, float]:
    """Each task's share of the examples, in multi-task and single-task runs alike."""
    weights = {task: size ** (1 / TEMPERATURE) for task, size in SIZES.items()}
    total = sum(weights.values())
    return {task: weight / total for task, weight in weights.items()}


def first_stage(plan: Plan, seed: int) -> Iterator[Run]:
    """The runs of one seed: the three mixtures, Single-Task with the same examples of each task."""
    tasks = tuple(SIZES)
    for system in (DENSE, TAG, SWITCH):
        yield Run(system, f"{system}_minilm", tasks, seed, plan.updates)
    for task, share in mixture_shares().items():
        yield Run(SINGLE, f"{DENSE}_minilm", (task,), seed, max(1, round(share * plan.updates)))


def other_combine(plan: Plan, seed: int) -> Run:
    """MT-TaG with the paper's combine, which scales a pretrained layer by about 1/N at the start."""
    return Run("mt_tag_paper", "mt_tag_minilm", tuple(SIZES), seed, plan.updates, ("--expert-combine", "paper"))


def second_stage(plan: Plan, seed: int) -> Iterator[Run]:
    """A new task from few examples: with a related task's gate, with a random one, and without the mixture."""
    for task, related in FEW_SHOT.items():
        for share in SHARES:
            common: dict[str, Any] = {"tasks": (task,), "seed": seed, "updates": plan.few_updates}
            common |= {"stage": 2, "share": share}
            start = f"{TAG}-{seed}"
            yield Run("few_reuse", "mt_tag_minilm", options=("--reuse-gate", related), begins_with=start, **common)
            yield Run("few_random", "mt_tag_minilm", begins_with=start, **common)
            yield Run("few_mt_dense", "mt_dense_minilm", begins_with=f"{DENSE}-{seed}", **common)
            yield Run("few_single", "mt_dense_minilm", **common)


def plan_of(data: Path, encoder: Path, runs: Path, updates: int, few_updates: int, lr: float) -> Plan:
    """What all runs share."""
    sampling = ("--sampling-method", "temperature", "--sampling-temperature", str(TEMPERATURE))
    return Plan(data, encoder, runs, updates, few_updates, lr, sampling, CAPPED)


@click.command(context_settings={"show_default": True})
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("encoder", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--runs", type=click.Path(path_type=Path), required=True, help="Folder of the runs.")
@click.option("--updates", default=1000, help="Updates of each mixture; Single-Task's share them.")
@click.option("--few-updates", default=100, help="Updates of each run on a new task.")
@click.option("--lr", default=5e-5, help="Highest learning rate of all runs.")
@click.option("--seeds", default="1,2,3", metavar="N,…", help="Seeds of every system.")
@click.option("--stage", type=click.Choice(["1", "2"]), default="1", help="1: mixtures; 2: new tasks from them.")
def main(
    data: Path, encoder: Path, runs: Path, updates: int, few_updates: int, lr: float, seeds: str, stage: str
) -> None:
    """Train what is missing, on the benchmarks' files in DATA, from ENCODER."""
    runs.mkdir(parents=True, exist_ok=True)
    settings = {"sizes": SIZES, "temperature": TEMPERATURE, "batch": BATCH, "updates": updates, "lr": lr}
    plan = plan_of(data, encoder, runs, updates, few_updates, lr)
    numbers = [int(seed) for seed in seeds.split(",")]
    todo = [run for seed in numbers for run in (first_stage if stage == "1" else second_stage)(plan, seed)]
    if stage == "1":
        todo += [other_combine(plan, seed) for seed in numbers]

    def forget(run: Run) -> None:
        if run.system not in (TAG, DENSE):  # with which runs on new tasks begin
            (runs / run.name / CHECKPOINT).unlink()

    run_all(todo, lambda run: run_one(plan, run, command_of(plan, run)), RESULT, settings, forget)


if __name__ == "__main__":
    sys.exit(main())
