"""Runs on benchmarks' tasks that are compared: their commands, trained and validated one after the other.

Every run is one `fairseq-train` on one core, and what it found stands in a JSON file as soon as it is there, with
commit, command and seed. A run that stands there is left out; one that was trained is validated; one that was
interrupted begins anew. What a report needs of a run is in its record: `system`, `tasks`, `seed`, `share`, `scores`.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from compare_training import execute, say, surroundings, with_names, write_json

TRAINED = "trained.json"
CHECKPOINT = "checkpoint_last.pt"
SCORES = Path("scores") / "scores.json"
BATCH = 32


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
    examples: int = 0  # as many training examples; 0: all

    @property
    def name(self) -> str:
        """Its folder's."""
        alone = f"-{self.tasks[0]}" if len(self.tasks) == 1 else ""
        share = f"-{self.share:g}" if self.share < 1 else ""
        few = f"-{self.examples}ex" if self.examples else ""
        return f"{self.system}{alone}{share}{few}-{self.seed}"


@dataclass
class Plan:
    """What all runs share.

    Attributes:
        data, encoder, runs: where these are.
        updates, few_updates: of each mixture, and of each run on a new task.
        lr: the highest learning rate.
        sampling: options; a run's own come later, and win.
        capped: of the mixture's tasks, the share of the examples that is trained on.
        subsets: which data a stage's runs are scored on.
    """

    data: Path
    encoder: Path
    runs: Path
    updates: int
    few_updates: int
    lr: float
    sampling: tuple[str, ...]
    capped: Mapping[str, float] = field(default_factory=dict)
    subsets: Mapping[int, str] = field(default_factory=dict)


def command_of(plan: Plan, run: Run, starting_point: Path | None = None) -> list[str]:
    """The fairseq-train of a run.

    Args:
        plan: what all runs share.
        run: which one.
        starting_point: the checkpoint that it begins with; by default that of the run that it begins with, if any.
    """
    start = starting_point or (plan.runs / run.begins_with / CHECKPOINT if run.begins_with else None)
    shares = {task: run.share if run.stage == 2 else plan.capped.get(task, 1) for task in run.tasks}
    share = ",".join(f"{task}={share:g}" for task, share in shares.items() if share < 1)
    words: list[object] = [
        *("fairseq-train", plan.data, "--user-dir", "fairseq_mtmoe", "--task", "glue"),
        *("--glue-tasks", ",".join(run.tasks), "--arch", run.arch),
        *(("--train-share", share) if share else ()),
        *(("--finetune-from-model", start) if start else ("--init-encoder", plan.encoder)),
        *("--criterion", "multitask", "--optimizer", "fused_adam", "--adam-betas", "(0.9,0.999)", "--clip-norm", 1),
        *("--lr", plan.lr, "--lr-scheduler", "polynomial_decay", "--warmup-updates", math.ceil(run.updates / 10)),
        *("--total-num-update", run.updates, "--max-update", run.updates, "--batch-size", BATCH, "--seed", run.seed),
        *(*plan.sampling, *run.options, "--max-positions", 128),
        *("--cpu", "--bf16", "--num-workers", 0, "--disable-validation", "--no-epoch-checkpoints"),
        *("--no-save-optimizer-state", "--log-format", "json", "--log-interval", 50),
        *("--save-dir", plan.runs / run.name),
    ]  # fmt: skip
    return [str(word) for word in words]


def validation_of(plan: Plan, run: Run) -> list[str]:
    """The fairseq-validate of a run: of its last update, so that no row is the best of several looks."""
    subset = plan.subsets.get(run.stage)
    words: list[object] = [
        *("fairseq-validate", plan.data, "--user-dir", "fairseq_mtmoe", "--task", "glue"),
        *("--glue-tasks", ",".join(run.tasks), "--path", plan.runs / run.name / CHECKPOINT, "--cpu"),
        *(("--valid-subset", subset) if subset else ()),
        *("--results-path", (plan.runs / run.name / SCORES).parent, "--batch-size", 64, "--max-positions", 128),
    ]  # fmt: skip
    return [str(word) for word in words]


def portable(plan: Plan, command: Sequence[str]) -> list[str]:
    """A command with names in the place of this machine's folders."""
    return with_names(command, {plan.data: "GLUE_DIR", plan.encoder: plan.encoder.name, plan.runs: "runs"})


def run_one(plan: Plan, run: Run, command: list[str], validation: list[str] | None = None) -> dict[str, Any]:
    """Train and validate a run; what it found, and with what. What is there of it already is not done again.

    Args:
        plan: what all runs share.
        run: which one.
        command: trains it.
        validation: writes its scores; by default `validation_of`.
    """
    folder = plan.runs / run.name
    if not (folder / CHECKPOINT).exists() or not (folder / TRAINED).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        say(f"{run.name}: {run.updates} updates")
        seconds = execute(command, folder / "train.log")
        found = {**surroundings(), "command": portable(plan, command), **asdict(run), "seconds": round(seconds)}
        write_json(folder / TRAINED, found)
    if not (folder / SCORES).exists():
        execute(validation or validation_of(plan, run), folder / "valid.log")
    scores = json.loads((folder / SCORES).read_text(encoding="utf-8"))
    shown = [f"{name} {task['score']:.1f}" for name, task in scores["tasks"].items()]
    say(f"{run.name}: {', '.join(shown)}")
    return {**json.loads((folder / TRAINED).read_text(encoding="utf-8")), "scores": scores["tasks"]}


def finished_runs(result: Path) -> dict[str, Any]:
    """What was found before, here or elsewhere, by the runs' names."""
    return {} if not result.exists() else json.loads(result.read_text(encoding="utf-8"))["runs"]


def run_all(
    runs: Iterable[Run],
    execute_one: Callable[[Run], dict[str, Any]],
    result: Path,
    settings: Mapping[str, object],
    after: Callable[[Run], None],
) -> None:
    """Do what is missing, and write the result after each run.

    Args:
        runs: in their order.
        execute_one: trains and validates one.
        result: the file of all that was found.
        settings: of the study.
        after: is called with each run that is written down.
    """
    found = finished_runs(result)
    todo = [run for run in runs if run.name not in found]
    start = time.monotonic()
    for number, run in enumerate(todo, start=1):
        found[run.name] = execute_one(run)
        write_json(result, {"settings": settings, "runs": found})
        after(run)
        say(f"{number} of {len(todo)} runs, {(time.monotonic() - start) / 60:.0f} minutes")
