"""Trains MT-TaG, MT-Switch, MT-Dense and Single-Task on the same small tasks from one pretrained encoder.

Every run is one `fairseq-train` on one core. Runs of a seed see the same examples of each task, in the same number of
updates; rows differ in the model alone. A run that finished is not repeated, and the results are written after each.

    python benchmarks/compare_glue.py GLUE_DIR encoder.pt --runs runs/glue
"""

from __future__ import annotations

import json
import math
import random
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from compare_training import execute, say, surroundings, write_json
from measure import RESULTS

FINISHED = "finished.json"
RESULT = RESULTS / "glue.json"
# Training examples of each task of the mixture. Shares are those of temperature 2: by the square roots.
SIZES = {
    "rte": 2490, "mrpc": 3668, "cola": 8551, "stsb": 5749, "cb": 250, "copa": 400, "wic": 5428, "boolq": 2500,
    "sst2": 4000, "mnli": 1500,
}  # fmt: skip
CAPPED = {"GLUE/SST-2/train.tsv": 4000}  # files of which so many examples are drawn
TEMPERATURE = 2.0
BATCH = 32
SINGLE, DENSE, SWITCH, TAG = "single", "mt_dense", "mt_switch", "mt_tag"
FEW_SHOT = {"sick": "mnli", "rotten_tomatoes": "sst2"}  # a new task, and the related one whose gate it begins with
SHARES = (0.01, 0.1)


@dataclass(frozen=True)
class Run:
    """One training: which tasks from what, with which options beside those that all have."""

    system: str
    arch: str
    tasks: tuple[str, ...]
    seed: int
    updates: int
    options: tuple[str, ...] = ()
    stage: int = 1
    share: float = 1.0
    begins_with: str = ""  # the name of the run whose checkpoint this one begins with

    @property
    def name(self) -> str:
        """Its folder's."""
        alone = f"-{self.tasks[0]}" if len(self.tasks) == 1 else ""
        share = f"-{self.share:g}" if self.share < 1 else ""
        return f"{self.system}{alone}{share}-{self.seed}"


@dataclass
class Plan:
    """What all runs share."""

    data: Path
    encoder: Path
    runs: Path
    updates: int
    few_updates: int
    lr: float
    settings: dict[str, Any] = field(default_factory=dict)


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


def command_of(plan: Plan, run: Run) -> list[str]:
    """The fairseq-train of a run."""
    start = ("--finetune-from-model", str(plan.runs / run.begins_with / "checkpoint_last.pt"))
    share = ("--train-share", f"{run.share:g}") if run.share < 1 else ()
    words: list[object] = [
        *("fairseq-train", plan.data, "--user-dir", "fairseq_mtmoe", "--task", "glue"),
        *("--glue-tasks", ",".join(run.tasks), "--arch", run.arch, *run.options, *share),
        *(start if run.begins_with else ("--init-encoder", plan.encoder)),
        *("--criterion", "multitask", "--optimizer", "fused_adam", "--adam-betas", "(0.9,0.999)", "--clip-norm", 1),
        *("--lr", plan.lr, "--lr-scheduler", "polynomial_decay", "--warmup-updates", math.ceil(run.updates / 10)),
        *("--total-num-update", run.updates, "--max-update", run.updates, "--batch-size", BATCH, "--seed", run.seed),
        *("--sampling-method", "temperature", "--sampling-temperature", TEMPERATURE, "--max-positions", 128),
        *("--cpu", "--bf16", "--num-workers", 0, "--validate-interval", 10**6, "--no-epoch-checkpoints"),
        *("--no-save-optimizer-state", "--log-format", "json", "--log-interval", 50),
        *("--save-dir", plan.runs / run.name),
    ]  # fmt: skip
    return [str(word) for word in words]


def run_one(plan: Plan, run: Run, keep: bool) -> None:
    """Train a run unless it finished before; the metrics are those of its last update."""
    folder = plan.runs / run.name
    if (folder / FINISHED).exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = command_of(plan, run)
    say(f"{run.name}: {run.updates} updates")
    seconds = execute(command, folder / "train.log")
    for path in folder.glob("*.pt"):
        if not keep or path.name != "checkpoint_last.pt":
            path.unlink()
    figures = last_figures(folder)
    content = {**surroundings(), "command": command, **asdict(run), "seconds": round(seconds, 1), **figures}
    write_json(folder / FINISHED, content)
    say(f"{run.name}: {', '.join(f'{task} {value}' for task, value in figures['figures'].items())}")


def last_figures(folder: Path) -> dict[str, Any]:
    """Each set's metric and loss at the end, from the run log."""
    lines = (folder / "mtmoe.jsonl").read_text(encoding="utf-8").splitlines()
    event = [one for one in map(json.loads, lines) if one["event"] == "valid"][-1]
    return {"update": event["update"], "figures": figures_of(event)}


def figures_of(event: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a validation, in percent: of each set, which has one beside its loss, and of the groups."""
    sets = {
        task: next(value for name, value in values.items() if name != "loss") for task, values in event["tasks"].items()
    }
    return sets | {group: values["mean"] for group, values in event["groups"].items()}


def capped_data(source: Path, target: Path) -> Path:
    """The data with the large files cut to some of their lines, the same ones each time."""
    if not target.exists():
        made = target.with_name(f"{target.name}.new")
        shutil.rmtree(made, ignore_errors=True)
        shutil.copytree(source, made)
        for name, size in CAPPED.items():
            header, *lines = (made / name).read_text(encoding="utf-8").splitlines(keepends=True)
            chosen = sorted(random.Random(1).sample(range(len(lines)), size))
            (made / name).unlink()
            (made / name).write_text(header + "".join(lines[number] for number in chosen), encoding="utf-8")
        made.rename(target)
    return target


def collect(plan: Plan) -> None:
    """Write what all finished runs found."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(plan.runs.glob(f"*/{FINISHED}"))]
    write_json(RESULT, {"settings": plan.settings, "runs": found})


@click.command(context_settings={"show_default": True})
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("encoder", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--runs", type=click.Path(path_type=Path), required=True, help="Folder of the runs.")
@click.option("--updates", default=400, help="Updates of each mixture; Single-Task's share them.")
@click.option("--few-updates", default=60, help="Updates of each run on a new task.")
@click.option("--lr", default=1e-4, help="Highest learning rate of all runs.")
@click.option("--seeds", default="1,2,3", metavar="N,…", help="Seeds of every system.")
@click.option("--stage", type=click.Choice(["1", "2"]), default="1", help="1: mixtures; 2: new tasks from them.")
def main(
    data: Path, encoder: Path, runs: Path, updates: int, few_updates: int, lr: float, seeds: str, stage: str
) -> None:
    """Train what is missing, on the benchmarks' files in DATA, from ENCODER."""
    runs.mkdir(parents=True, exist_ok=True)
    settings = {"sizes": SIZES, "temperature": TEMPERATURE, "batch": BATCH, "updates": updates, "lr": lr}
    plan = Plan(capped_data(data, runs / "data"), encoder, runs, updates, few_updates, lr, settings)
    numbers = [int(seed) for seed in seeds.split(",")]
    todo = [run for seed in numbers for run in (first_stage if stage == "1" else second_stage)(plan, seed)]
    if stage == "1":
        todo += [other_combine(plan, seed) for seed in numbers]
    start = time.monotonic()
    for number, run in enumerate(todo):
        run_one(plan, run, keep=run.system in (TAG, DENSE))
        collect(plan)
        say(f"{number + 1} of {len(todo)} runs, {(time.monotonic() - start) / 60:.0f} minutes")


if __name__ == "__main__":
    sys.exit(main())
