"""Evaluates BASE layers greedily, at running prices, and balanced within the batch; and trains by prices, too.

Trains what is missing of the runs of `price_runs.py`, one process on one thread each, evaluates all checkpoints
(`price_evaluation.py`), translates the test sets greedily and at prices, and reports on all runs that are finished.
What was done is not done again, and what was interrupted goes on.

    python benchmarks/bench_prices.py --captions DATA --english15 DATA --demo DATA --runs runs/prices --write
"""

from __future__ import annotations

import json
import logging
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
from compare_training import ROOT, execute, progress, say, surroundings, write_json
from price_evaluation import EVALUATION, PRICES_LOG, checkpoints
from price_memory import read_log, training_loads
from price_numbers import numbers_of
from price_report import write_report
from price_runs import BALANCED, BY_NAME, GREEDY, KINDS, PRICES, SEEDS, PriceRun, runs_in_order

FINISHED = "finished.json"
RESULTS = ROOT / "benchmarks" / "results" / "prices"
FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


@click.command(context_settings={"show_default": True})
@click.option("--captions", type=FOLDER, help="Data directory of the captions.")
@click.option("--english15", type=FOLDER, help="Data directory of English→15.")
@click.option("--demo", type=FOLDER, help="Data directory of the demo.")
@click.option("--runs", type=click.Path(path_type=Path), required=True, help="Folder of the runs.")
@click.option("--seeds", default=",".join(map(str, SEEDS)), metavar="N,…", help="Seeds of every way of training.")
@click.option("--kinds", default=",".join(KINDS), metavar="NAME,…", help="Ways of training.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Runs at a time, each on one core.")
@click.option("--memories/--no-memories", default=True, help="Validate with other memories, too.")
@click.option("--score/--no-score", default=True, help="Translate and score test sets.")
@click.option("--write", is_flag=True, help="Write benchmarks/results/prices.md and what belongs to it.")
def main(
    runs: Path, seeds: str, kinds: str, jobs: int, memories: bool, score: bool, write: bool, **data: Path | None
) -> None:
    """Train and evaluate what is missing on the given data sets, then report on all that is finished in the folder."""
    logging.disable(logging.INFO)
    chosen = kinds.split(",")
    if unknown := set(chosen) - set(KINDS):
        raise click.BadParameter(f"`--kinds` must be some of {', '.join(KINDS)}, but is {', '.join(unknown)} instead.")
    given = {name: folder for name, folder in data.items() if folder is not None}
    todo = runs_in_order(list(given), chosen, [int(seed) for seed in seeds.split(",")])
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [
            pool.submit(run_one, run, given[run.data_set.name], runs / run.name, memories, score) for run in todo
        ]
        for future in waiting:
            future.result()
    found = find_runs(runs)
    if found and write:
        write_report(found, RESULTS, shlex.join(["python", "benchmarks/bench_prices.py", *sys.argv[1:]]))


def run_one(run: PriceRun, data: Path, folder: Path, memories: bool, score: bool) -> None:
    """Train, validate and translate one run, as far as not done yet."""
    if not (folder / FINISHED).exists():
        train(run, data, folder)
    is_balanced = run.kind == BALANCED
    say(f"{run.name}: validating")
    evaluation = [sys.executable, "benchmarks/price_evaluation.py", str(folder)]
    execute([*evaluation, *(["--memories"] if memories and is_balanced else [])], folder / "valid.log")
    for way in (GREEDY, PRICES) if score and is_balanced and run.data_set.is_translated else ():
        if not (folder / f"scores_{way}" / "scores.json").exists():
            say(f"{run.name}: translating, {way}")
            score_run(run, way, data, folder)
    say(f"{run.name}: done")


def train(run: PriceRun, data: Path, folder: Path) -> None:
    """Train one run, or go on with it."""
    folder.mkdir(parents=True, exist_ok=True)
    found, command = surroundings(), run.train_command(data, folder)
    say(f"{run.name}: training")
    execute(command, folder / "train.log", lambda: progress(folder))
    if run.data_set.updates not in checkpoints(folder):  # fairseq has no other name for the end of an epoch
        shutil.copy(folder / "checkpoint_last.pt", folder / f"checkpoint_end_{run.data_set.updates}.pt")
    write_json(folder / FINISHED, {**found, "command": command})


def score_run(run: PriceRun, way: str, data: Path, folder: Path) -> None:
    """Translate and score the test sets with the last checkpoint in one way of evaluation."""
    path = checkpoints(folder)[run.data_set.updates]
    out = folder / f"scores_{way}"
    command = [
        *("mtmoe", "evaluate", str(data), "--path", str(path), "--out", str(out), "--base-evaluation", way, "--cpu"),
        *("--beam", "4", "--max-len-a", "1.5", "--max-len-b", "10", "--max-tokens", "6000", "--overwrite"),
    ]
    execute(command, folder / f"score_{way}.log")
    finished = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
    write_json(folder / FINISHED, {**finished, f"score_command_{way}": command})


def find_runs(runs: Path) -> list[dict[str, Any]]:
    """The numbers of all finished runs of the folder, in the order of `runs_in_order`."""
    found = []
    for run in runs_in_order(list(BY_NAME), KINDS, range(1, 100)):
        folder = runs / run.name
        if (folder / FINISHED).exists() and is_validated(folder, run.data_set.updates):
            found.append(numbers_of(run, read_run(folder)))
    return found


def is_validated(folder: Path, update: int) -> bool:
    """Whether the checkpoint of this update is."""
    path = folder / EVALUATION
    return path.exists() and str(update) in json.loads(path.read_text(encoding="utf-8"))["updates"]


def read_run(folder: Path) -> dict[str, Any]:
    """What the files of a finished run say."""
    content = json.loads((folder / FINISHED).read_text(encoding="utf-8"))
    content["evaluation"] = json.loads((folder / EVALUATION).read_text(encoding="utf-8"))
    if (folder / PRICES_LOG).exists():
        content["training_loads"] = training_loads(read_log(folder / PRICES_LOG))
    for way in (GREEDY, PRICES):
        path = folder / f"scores_{way}" / "scores.json"
        if path.exists():
            scores = json.loads(path.read_text(encoding="utf-8"))
            content.setdefault("scores", {})[way] = scores["averages"]
            of_pairs = [pair[f"{metric}_signature"] for pair in scores["pairs"].values() for metric in ("bleu", "chrf")]
            content["signatures"] = sorted(set(of_pairs))
    return content


if __name__ == "__main__":
    main()
