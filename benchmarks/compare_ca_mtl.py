"""CA-MTL's evidence: the ablation of its table 1, adaptation to a new task, and what no paper tried, in translation.

    python benchmarks/compare_ca_mtl.py glue GLUE_DIR encoder.pt --runs runs/ca_mtl                # mixtures
    python benchmarks/compare_ca_mtl.py glue GLUE_DIR encoder.pt --runs runs/ca_mtl --stage single
    python benchmarks/compare_ca_mtl.py glue GLUE_DIR encoder.pt --runs runs/ca_mtl --stage new    # from the mixtures
    python benchmarks/compare_ca_mtl.py translation DATA --runs runs/ca_mtl_translation

Every run is one `fairseq-train` on one core, and is written down as soon as it is there; what stands in
`results/training_ca_mtl.json` is left out. `report_glue.py` makes the tables of it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from compare_training import execute, find_runs
from compare_training import run_one as train_translation
from glue_runs import BATCH, CHECKPOINT, Plan, Run, command_of, portable, run_all, run_one
from measure import RESULTS
from training_report import write_report
from training_systems import SETTINGS, System

from fairseq_mtmoe.analysis import run_log
from fairseq_mtmoe.analysis.series import selection_series

RESULT = RESULTS / "training_ca_mtl.json"
ARCH = "ca_mtl_minilm"
# Tasks whose official training and development sets are there as a whole, with texts that 128 tokens hold. Of SST-2 a
# share is trained on, so that it is not most of the data.
TASKS = ("cola", "sst2", "mrpc", "stsb", "rte", "cb", "copa", "wic")
CAPPED = {"sst2": 0.06}
ATTENTION, BOTTLENECK, ADAPTER, WHOLE = (
    "attention", "attention,bottleneck", "attention,bottleneck,alignment,norm", "ca_mtl",
)  # fmt: skip
UNCERTAINTY = ("--sampling-method", "uncertainty")
# Table 1, row by row: what is conditional, and how the tasks are sampled. The last row is that of figure 4.
MTL, MTL_UNCERTAINTY, SINGLE = "mtl", "mtl_uncertainty", "single"
ABLATION = {
    MTL: ("none", ()),
    "attention": (ATTENTION, ()),
    "bottleneck": (BOTTLENECK, ()),
    "norm": (ADAPTER, ()),
    WHOLE: (ADAPTER, UNCERTAINTY),
    MTL_UNCERTAINTY: ("none", UNCERTAINTY),
}
# What the paper reports of these rows, in percent: mean over GLUE's tasks, spread across them, share of the data.
PAPER = {
    MTL: (80.61, 14.41, 100),
    "attention": (82.41, 10.67, 100),
    "bottleneck": (82.90, 11.27, 100),
    "norm": (83.12, 10.91, 100),
    WHOLE: (84.03, 10.02, 66.3),
}
NEW_TASK = "sick"
SHARES = (0.001, 0.01, 0.1)
# How the new task's embedding begins: as that of the task which is most like it, as all tasks' mean, or drawn.
STARTS = ("rte", "mean", "random", "xavier")
UNFROZEN = ("--freeze-layers", "0")  # as the paper adapts (§4.4)


def mixtures(plan: Plan, seed: int) -> Iterator[Run]:
    """Table 1: equal updates of one size; rows differ in what is conditional, and the last ones in the sampling."""
    for system, (parts, sampling) in ABLATION.items():
        yield Run(system, ARCH, TASKS, seed, plan.updates, ("--conditional", parts, *sampling))


def single_tasks(plan: Plan, seed: int) -> Iterator[Run]:
    """Each task by itself with the examples of it that a mixture sees: for figure 6, and tasks that gain or lose."""
    for task in TASKS:
        yield Run(SINGLE, ARCH, (task,), seed, max(1, round(plan.updates / len(TASKS))), ("--conditional", "none"))


def new_tasks(plan: Plan, seed: int) -> Iterator[Run]:
    """The new task from few examples, drawn by the seed: from CA-MTL, from MTL, and from the encoder alone."""
    for share in SHARES:
        common: dict[str, Any] = {"tasks": (NEW_TASK,), "seed": seed, "updates": plan.few_updates, "stage": 2}
        drawn = (*UNFROZEN, "--train-share-seed", str(seed))
        common |= {"share": share, "arch": ARCH}
        for start in STARTS:
            options = ("--conditional", ADAPTER, *drawn)
            yield Run(f"from_{start}", options=options, begins_with=f"{WHOLE}-{seed}", **common)
        plain = ("--conditional", "none", *drawn)
        yield Run("from_mtl", options=plain, begins_with=f"{MTL}-{seed}", **common)
        yield Run("from_encoder", options=plain, **common)


STAGES = {"mixtures": mixtures, "single": single_tasks, "new": new_tasks}


def glue_plan(data: Path, encoder: Path, runs: Path, updates: int, few_updates: int, lr: float) -> Plan:
    """What all runs share. New tasks are scored on the test set, ten times as large; no run is chosen by any set."""
    sampling = ("--sampling-method", "uniform")
    return Plan(data, encoder, runs, updates, few_updates, lr, sampling, CAPPED, {2: "test"})


def start_of(run: Run) -> str:
    """How the embedding of a run on a new task begins; empty where there is none."""
    start = run.system.removeprefix("from_")
    return start if run.stage == 2 and start in STARTS else ""


def grown_checkpoint(plan: Plan, run: Run) -> Path:
    """Where the checkpoint of the mixture is that has the new task, too."""
    return plan.runs / run.begins_with / f"with_{NEW_TASK}_{start_of(run)}.pt"


def add_task_command(plan: Plan, run: Run) -> list[str]:
    """The command that makes it."""
    trained = plan.runs / run.begins_with / CHECKPOINT
    words = ("mtmoe", "add-task", trained, grown_checkpoint(plan, run), "--task", NEW_TASK)
    more = ("--embedding-from", start_of(run), "--seed", run.seed, "--overwrite")
    return [str(word) for word in (*words, *more)]


def command_for(plan: Plan, run: Run) -> list[str]:
    """The fairseq-train of a run, which begins with the grown checkpoint where there is one."""
    return command_of(plan, run, grown_checkpoint(plan, run) if start_of(run) else None)


def do(plan: Plan, run: Run) -> dict[str, Any]:
    """Train and score a run; with what it was trained on."""
    added = {}
    if start_of(run):
        command = add_task_command(plan, run)
        execute(command, plan.runs / f"add-task-{run.name}.log")
        added = {"add_task_command": portable(plan, command)}
    found = run_one(plan, run, command_for(plan, run))
    if start_of(run):
        grown_checkpoint(plan, run).unlink()
    return {**found, **added, **trained_on(plan.runs / run.name, run)}


def trained_on(folder: Path, run: Run) -> dict[str, Any]:
    """Which share of the training examples a run was trained on at least once, and each task's share of all it saw.

    Uncertainty sampling counts that. Elsewhere all tasks are drawn alike, each in passes without replacement.
    """
    events = run_log.read(folder)
    chosen = selection_series(events)
    if chosen.updates:
        total = {task: sum(counts) for task, counts in chosen.trained.items()}
        return {"share_of_data": chosen.share_of_data[-1], "task_shares": _shares(total)}
    sizes: dict[str, int] = next(event["sizes"] for event in events if event["event"] == "run")
    drawn = run.updates * BATCH / len(sizes)
    seen = sum(min(size, drawn) for size in sizes.values())
    return {"share_of_data": seen / sum(sizes.values()), "task_shares": _shares(dict.fromkeys(sizes, 1))}


def _shares(counts: dict[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {task: count / total for task, count in counts.items()}


@click.group()
def main() -> None:
    """Train what is missing of a study, in as many calls as it takes."""


@main.command(context_settings={"show_default": True})
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("encoder", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--runs", type=click.Path(path_type=Path), required=True, help="Folder of the runs.")
@click.option("--updates", default=1000, help="Updates of each mixture; single tasks share them.")
@click.option("--few-updates", default=100, help="Updates of each run on the new task.")
@click.option("--lr", default=5e-5, help="Highest learning rate of all runs.")
@click.option("--seeds", default="1,2,3", metavar="N,…", help="Seeds of every system.")
@click.option("--stage", type=click.Choice(list(STAGES)), default="mixtures", help="Which runs.")
@click.option("--systems", metavar="NAME,…", help="Only these, such as mtl,ca_mtl; by default all of the stage.")
@click.option("--result", type=click.Path(path_type=Path), default=RESULT, help="File of what was found.")
def glue(
    data: Path,
    encoder: Path,
    runs: Path,
    updates: int,
    few_updates: int,
    lr: float,
    seeds: str,
    stage: str,
    systems: str | None,
    result: Path,
) -> None:
    """Table 1, single tasks, and SICK from few examples, on the benchmarks' files in DATA, from ENCODER.

    Estimates for MiniLM on a core of its own: with 1000 updates 10 minutes for a mixture that draws tasks at random, 40
    for one with uncertainty sampling, whose candidates are 8 times the batch, and so 120 for a seed's mixtures; 10 for
    its single tasks together; a minute and a quarter for each of its 18 runs on the new task, with 100 updates.
    """
    runs.mkdir(parents=True, exist_ok=True)
    plan = glue_plan(data, encoder, runs, updates, few_updates, lr)
    todo = [run for seed in seeds.split(",") for run in STAGES[stage](plan, int(seed))]
    chosen = systems.split(",") if systems else [run.system for run in todo]
    settings: dict[str, Any] = {
        "tasks": TASKS,
        "capped": CAPPED,
        "batch": BATCH,
        "updates": updates,
        "lr": lr,
        "new": NEW_TASK,
    }
    paper = {row: dict(zip(("all", "spread", "% of the data"), values, strict=True)) for row, values in PAPER.items()}
    settings |= {"few_updates": few_updates, "paper": paper}

    def forget(run: Run) -> None:
        if run.stage == 2:
            (runs / run.name / CHECKPOINT).unlink()

    run_all([run for run in todo if run.system in chosen], lambda run: do(plan, run), result, settings, forget)


# What no paper tried: in translation, sparse and dense, the same budget of minutes. Batches have at most as many
# sentences in all runs, since candidates are as many of each pair.
SENTENCES = 50
NORM = ("--conditional", "norm")
CANDIDATES = ("--batch-size", str(SENTENCES))


def translation_systems() -> list[System]:
    """Dense, and with BASE layers: by temperature, and three systems that differ from it in one thing each."""
    found = []
    for name, title, arch in (("dense", "dense", "base_dense"), ("sparse", "BASE", "base_moe")):
        plain = System(name, title, arch, options=CANDIDATES)
        uncertain, normed = (*CANDIDATES, *UNCERTAINTY), (*CANDIDATES, *NORM)
        found.append(plain)
        found.append(replace(plain, name=f"{name}_heated", title=f"{title}, heated", heats=True))
        found.append(replace(plain, name=f"{name}_uncertainty", title=f"{title}, uncertainty", options=uncertain))
        found.append(replace(plain, name=f"{name}_norm", title=f"{title}, conditional norms", options=normed))
    return found


@main.command(context_settings={"show_default": True})
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--runs", type=click.Path(path_type=Path), required=True, help="Folder of the runs.")
@click.option("--minutes", type=float, default=SETTINGS["multi30k"].minutes, help="Processor time of each run.")
@click.option("--seeds", default="1,2,3", metavar="N,…", help="Seeds of every system.")
@click.option("--systems", metavar="NAME,…", help="Only these, such as dense,dense_uncertainty; by default all.")
@click.option("--score/--no-score", default=True, help="Translate and score the test sets.")
def translation(data: Path, runs: Path, minutes: float, seeds: str, systems: str | None, score: bool) -> None:
    """Multi30k cut to a skew in DATA, prepared by `mtmoe prepare text --vocab-size 4000`.

    Estimates for one core of its own: --minutes for each run, and one for its test sets; with 4 minutes 40 for
    the 8 runs of a seed.
    """
    setting = replace(SETTINGS["multi30k"], minutes=minutes)
    known = translation_systems()
    chosen = [system for system in known if not systems or system.name in systems.split(",")]
    for seed in seeds.split(","):
        for system in chosen:
            train_translation(system, setting, data, runs, int(seed), score)
            write_report(find_runs(runs, known), "CA-MTL in translation", setting, RESULTS / "training_ca_mtl_multi30k")


if __name__ == "__main__":
    sys.exit(main())
