"""Trains MT-TaG, MT-Switch, MT-Dense and Single-Task on the same small tasks from one pretrained encoder.

Every run is one `fairseq-train` on one core. Runs of a seed see the same examples of each task, in the same number of
updates; rows differ in the model alone. The results are written after each.

    python benchmarks/compare_glue.py GLUE_DIR encoder.pt --runs runs/glue

A run that stands in `results/training_glue.json` is left out. Runs on new tasks (`--stage 2`) begin with the
checkpoints of the mixtures, which must be in the same folder.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from compare_training import execute, say, surroundings, write_json
from measure import RESULTS

TRAINED = "trained.json"
CHECKPOINT = "checkpoint_last.pt"
SCORES = Path("scores") / "scores.json"
RESULT = RESULTS / "training_glue.json"
# Training examples of each task of the mixture. Shares are those of temperature 2: by the square roots.
SIZES = {
    "rte": 2490, "mrpc": 3668, "cola": 8551, "stsb": 5749, "cb": 250, "copa": 400, "wic": 5428, "boolq": 2500,
    "sst2": 4041, "mnli": 1500,
}  # fmt: skip
CAPPED = {"sst2": 0.06}  # of the mixture's tasks, the share of the examples that is trained on
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
    start = ("--finetune-from-model", str(plan.runs / run.begins_with / CHECKPOINT))
    shares = {task: run.share if run.stage == 2 else CAPPED.get(task, 1) for task in run.tasks}
    share = ",".join(f"{task}={share:g}" for task, share in shares.items() if share < 1)
    words: list[object] = [
        *("fairseq-train", plan.data, "--user-dir", "fairseq_mtmoe", "--task", "glue"),
        *("--glue-tasks", ",".join(run.tasks), "--arch", run.arch, *run.options),
        *(("--train-share", share) if share else ()),
        *(start if run.begins_with else ("--init-encoder", plan.encoder)),
        *("--criterion", "multitask", "--optimizer", "fused_adam", "--adam-betas", "(0.9,0.999)", "--clip-norm", 1),
        *("--lr", plan.lr, "--lr-scheduler", "polynomial_decay", "--warmup-updates", math.ceil(run.updates / 10)),
        *("--total-num-update", run.updates, "--max-update", run.updates, "--batch-size", BATCH, "--seed", run.seed),
        *("--sampling-method", "temperature", "--sampling-temperature", TEMPERATURE, "--max-positions", 128),
        *("--cpu", "--bf16", "--num-workers", 0, "--disable-validation", "--no-epoch-checkpoints"),
        *("--no-save-optimizer-state", "--log-format", "json", "--log-interval", 50),
        *("--save-dir", plan.runs / run.name),
    ]  # fmt: skip
    return [str(word) for word in words]


def run_one(plan: Plan, run: Run) -> dict[str, Any]:
    """Train and validate a run; what it found, and with what. What is there of it already is not done again."""
    folder = plan.runs / run.name
    command = command_of(plan, run)
    if not (folder / CHECKPOINT).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        say(f"{run.name}: {run.updates} updates")
        seconds = execute(command, folder / "train.log")
        found = {**surroundings(), "command": portable(plan, command), **asdict(run), "seconds": round(seconds)}
        write_json(folder / TRAINED, found)
    if not (folder / SCORES).exists():
        execute(validation_of(plan, run), folder / "valid.log")
    scores = json.loads((folder / SCORES).read_text(encoding="utf-8"))
    shown = [f"{name} {task['score']:.1f}" for name, task in scores["tasks"].items()]
    say(f"{run.name}: {', '.join(shown)}")
    return {**json.loads((folder / TRAINED).read_text(encoding="utf-8")), "scores": scores["tasks"]}


def validation_of(plan: Plan, run: Run) -> list[str]:
    """The fairseq-validate of a run: of its last update, so that no row is the best of several looks."""
    words: list[object] = [
        *("fairseq-validate", plan.data, "--user-dir", "fairseq_mtmoe", "--task", "glue"),
        *("--glue-tasks", ",".join(run.tasks), "--path", plan.runs / run.name / CHECKPOINT, "--cpu"),
        *("--results-path", (plan.runs / run.name / SCORES).parent, "--batch-size", 64, "--max-positions", 128),
    ]  # fmt: skip
    return [str(word) for word in words]


def portable(plan: Plan, command: list[str]) -> list[str]:
    """A command with names in the place of this machine's folders."""
    places = {str(plan.data): "GLUE_DIR", str(plan.encoder): "encoder.pt", str(plan.runs): "runs"}
    words = []
    for word in command:
        for path, name in places.items():
            word = word.replace(path, name)
        words.append(word)
    return words


def finished_runs() -> dict[str, Any]:
    """What was found before, here or elsewhere, by the runs' names."""
    return {} if not RESULT.exists() else json.loads(RESULT.read_text(encoding="utf-8"))["runs"]


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
    plan = Plan(data, encoder, runs, updates, few_updates, lr)
    numbers = [int(seed) for seed in seeds.split(",")]
    todo = [run for seed in numbers for run in (first_stage if stage == "1" else second_stage)(plan, seed)]
    if stage == "1":
        todo += [other_combine(plan, seed) for seed in numbers]
    found = finished_runs()
    start = time.monotonic()
    for number, run in enumerate(todo):
        if run.name in found:
            continue
        found[run.name] = run_one(plan, run)
        write_json(RESULT, {"settings": settings, "runs": found})
        if run.system not in (TAG, DENSE):
            (runs / run.name / CHECKPOINT).unlink()
        say(f"{number + 1} of {len(todo)} runs, {(time.monotonic() - start) / 60:.0f} minutes")


if __name__ == "__main__":
    sys.exit(main())
