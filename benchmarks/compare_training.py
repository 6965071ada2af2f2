"""Trains the systems of "Tricks for Training Sparse Translation Models" on one data set, and compares them.

Every run is one process on one core with the same budget of minutes. A run that finished is not repeated, one that was
interrupted starts anew (half of its time was another's), and the comparison is written from all that are there.

    python benchmarks/compare_training.py multi30k DATA --runs runs/multi30k --jobs 2
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
from training_report import RunResult, write_report
from training_systems import BY_NAME, SETTINGS, SYSTEMS, Setting, System, score_command, train_command, twin_command

ROOT = Path(__file__).resolve().parent.parent
FINISHED = "finished.json"


@click.command(context_settings={"show_default": True})
@click.argument("setting_name", metavar="SETTING", type=click.Choice(list(SETTINGS)))
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--runs", type=click.Path(path_type=Path), required=True, help="Folder of the runs.")
@click.option("--minutes", type=float, help="Budget of each run; by default the setting's.")
@click.option("--seeds", default="1,2", metavar="N,…", help="Seeds of every system.")
@click.option("--systems", default=",".join(BY_NAME), metavar="NAME,…", help="What to train.")
@click.option("--jobs", type=click.IntRange(1), default=1, help="Runs at a time, each on one core.")
@click.option("--score/--no-score", default=True, help="Translate and score the test sets.")
@click.option("--results", type=click.Path(path_type=Path), default=ROOT / "benchmarks" / "results",
              help="Folder of the report.")  # fmt: skip
def main(
    setting_name: str,
    data: Path,
    runs: Path,
    minutes: float | None,
    seeds: str,
    systems: str,
    jobs: int,
    score: bool,
    results: Path,
) -> None:
    """Train what is missing of SETTING on the data directory DATA, then compare all that is there."""
    setting = SETTINGS[setting_name]
    setting = replace(setting, minutes=minutes) if minutes else setting
    chosen = [_system(name) for name in systems.split(",")]
    todo = [(system, int(seed)) for seed in seeds.split(",") for system in chosen]
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(run_one, system, setting, data, runs, seed, score) for system, seed in todo]
        for future in waiting:
            future.result()
    found = find_runs(runs)
    if found:
        write_report(found, setting_name, setting, results / f"training_{setting_name}")


def run_one(system: System, setting: Setting, data: Path, runs: Path, seed: int, score: bool) -> None:
    """Train, validate (stock fairseq's checkpoints) and score one system with one seed, as far as not done yet.

    Raises:
        click.ClickException: the folder has a finished run of another command; or a command failed.
    """
    run = runs / f"{system.name}-{seed}"
    command = train_command(system, setting, data, run, seed, setting.minutes)
    shown = with_names(command, {data: "DATA", run.parent: "runs"})
    if (run / FINISHED).exists():
        _check_same(run, shown)
    else:
        shutil.rmtree(run, ignore_errors=True)
        run.mkdir(parents=True)
        say(f"{run.name}: {setting.budget}")
        seconds = execute(command, run / "train.log", lambda: progress(run))
        if system.is_stock:
            twin = [sys.executable, str(ROOT / "benchmarks" / "tier_perplexity.py"), str(run)]
            execute([*twin, *twin_command(setting, data, run)], run / "valid.log")
        write_json(run / FINISHED, {**surroundings(), "command": shown, "seed": seed, "seconds": round(seconds, 1)})
    if score and not (run / "scores" / "scores.json").exists():
        command = score_command(data, run)
        say(f"{run.name}: translating")
        execute(command, run / "score.log")
        finished = json.loads((run / FINISHED).read_text(encoding="utf-8"))
        shown = with_names(command, {data: "DATA", run.parent: "runs"})
        write_json(run / FINISHED, {**finished, "score_command": shown})
        say(f"{run.name}: done")


def _check_same(run: Path, command: Sequence[str]) -> None:
    """A finished run is used again only if it is what would be trained."""
    found = json.loads((run / FINISHED).read_text(encoding="utf-8"))["command"]
    if found != command:
        first = next(place for place, (one, other) in enumerate(zip_longest(found, command)) if one != other)
        ours, other = (shlex.join(words[first - 1 : first + 1]) for words in (command, found))
        raise click.ClickException(
            f"`{run}` must be a run with `{ours}`, but is one with `{other}` instead: "
            "give another `--runs`, or remove it."
        )


def execute(command: list[str], log: Path, watch: Callable[[], None] | None = None) -> float:
    """Run a command on one thread, its output in `log`; returns its seconds.

    Raises:
        click.ClickException: it failed; the message holds the end of the log.
    """
    # PYTHONPATH: this checkout's plugin, wherever another one may be installed.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    start = time.monotonic()
    with open(log, "wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
        while True:
            try:
                status = process.wait(timeout=30)
                break
            except subprocess.TimeoutExpired:
                if watch:
                    watch()
    if status:
        end = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise click.ClickException(f"{shlex.join(command)} failed with status {status}:\n{end}")
    return time.monotonic() - start


def with_names(command: Sequence[str], places: Mapping[Path, str]) -> list[str]:
    """A command with names in the place of this machine's folders and files."""
    words = []
    for word in command:
        for path, name in places.items():
            word = word.replace(str(path), name)
        words.append(word)
    return words


def progress(run: Path) -> None:
    """Say how far a run is, by the last line that fairseq logged."""
    lines = (run / "train.log").read_text(encoding="utf-8", errors="replace").splitlines()
    last = next((line for line in reversed(lines) if "train_inner" in line), "")
    if last:
        values = json.loads(last.split(" | ")[-1])
        say(f"{run.name}: update {values['num_updates']}, perplexity {values['ppl']}, {values['wall']} s")


def say(text: str) -> None:
    """A line for whoever waits."""
    click.echo(f"{time.strftime('%H:%M:%S')} {text}")


def find_runs(runs: Path, systems: Sequence[System] = SYSTEMS) -> list[RunResult]:
    """All finished runs of the folder, in the order of the systems."""
    found = []
    for system in systems:
        for path in sorted(runs.glob(f"{system.name}-*")):
            if (path / FINISHED).exists() and path.name.rpartition("-")[0] == system.name:
                found.append(RunResult.read(system, path, json.loads((path / FINISHED).read_text(encoding="utf-8"))))
    return found


def surroundings() -> dict[str, Any]:
    """Hardware, versions and commit: what a number depends on besides its command."""
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    model = "unknown"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    versions = {"python": platform.python_version(), "torch": version("torch"), "fairseq": version("fairseq-fixed")}
    return {"commit": commit, "hardware": f"{model}, {os.cpu_count()} cores", "versions": versions}


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a file that is complete or absent."""
    from fairseq_mtmoe.io.files import write_text

    write_text(path, json.dumps(content, indent=2) + "\n")


def _system(name: str) -> System:
    if name not in BY_NAME:
        raise click.BadParameter(f"`--systems` must be some of {', '.join(BY_NAME)}, but is {name} instead.")
    return BY_NAME[name]


if __name__ == "__main__":
    main()
