"""Registered studies: which runs there are to be, the runs themselves, and their figures in one table.

    python benchmarks/study.py run captions DATA --runs RUNS             # all that is missing, one run after the other
    python benchmarks/study.py record captions --runs RUNS               # finished runs into results/results.csv

A run is one `fairseq-train` on one core, the mean of its last checkpoints, and its scores on the test sets; of a
benchmark's tasks it is scored as it ends, on their development sets. What was interrupted goes on where it was. A run
that the table has is not run again, whichever machine it ran on; only what another row still needs is: the run that
it branches from, up to the branch, or one whose files it reads. A study does not run if its file is not committed, or
has changed since its first run.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import click
import sentences
import study_plan
from study_figures import (
    ENTRY,
    FINISHED,
    NO_SEED,
    PERPLEXITY,
    RESULTS,
    ROOT,
    SCORE,
    figures_of,
    gate_figures,
    means_of_tasks,
    perplexities,
    rated_row,
    read_results,
    task_scores,
    write_results,
)
from study_plan import STUDIES, Study

from fairseq_mtmoe import __version__
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import write_text

AVERAGED, LAST = "averaged.pt", "checkpoint_last.pt"
Known = tuple[str, str, str]  # row, seed and task of a line of the table


@click.group(context_settings={"show_default": True})
def main() -> None:
    """Registered studies of benchmarks/studies."""


@main.command()
@click.argument("name")
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--runs", type=click.Path(path_type=Path), required=True, help="Folder of the runs.")
@click.option("--rows", metavar="ROW,…", help="Which; by default all of this DATA.")
@click.option("--seeds", metavar="N,…", help="Which; by default the study's first ones.")
@click.option("--amend", metavar="REASON", default="", help="Why the study has changed since its first run.")
@click.option("--pretrained", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="`{pretrained}`.")
def run(
    name: str, data: Path, runs: Path, rows: str | None, seeds: str | None, amend: str, pretrained: Path | None
) -> None:
    """Run what is missing of the study NAME on the data directory DATA: first learning rates, then by seed."""
    path = STUDIES / f"{name}.yaml"
    study = study_plan.load(path)
    check_committed(path)
    study_plan.register(path, amend)
    chosen = rows.split(",") if rows else [row for row, what in study.rows.items() if not what.own_data]
    if unknown := [row for row in chosen if row not in study.rows]:
        raise UserError(f"`--rows` must be some of {', '.join(study.rows)}, but is {unknown[0]} instead.")
    data, folder = data.resolve(), (runs / name).resolve()
    known = {(line["row"], line["seed"], line["task"]) for line in read_results(RESULTS) if line["study"] == name}
    _sweep(study, {study.rows[row].rate for row in chosen}, data, folder, pretrained, known)
    seeds_of_run = list(map(int, seeds.split(","))) if seeds else study.seeds
    runs_of = [
        (row, study.rows[row].seed or seed, task)
        for row in chosen
        for seed in seeds_of_run
        for task in study.runs_of(row, seed)
    ]
    missing = {run[0] for run in runs_of if not _is_known(*run, known)}
    read = " ".join(word for row in missing for word in study.options_of(row))
    for seed in seeds_of_run:
        for row in chosen:
            if study.tasks:
                _run_tasks(study, row, data, folder, seed, pretrained, set() if f"{{runs}}/{row}-" in read else known)
                continue
            for pair, run_name in study.runs_of(row, seed).items():
                if not _is_known(row, study.rows[row].seed or seed, pair, known):
                    _run_one(study, row, data, folder / run_name, seed, pair, pretrained)


def _sweep(
    study: Study, rows: set[str], data: Path, folder: Path, pretrained: Path | None, known: set[Known]
) -> None:  # fmt: skip
    """Train rows of the sweep with each learning rate that the table has not; of several runs of a row the first."""
    seed = study.rates.seed
    for row in filter(rows.__contains__, study.rates.rows):
        for rate in study.rates.values:
            if (rated_row(row, rate), NO_SEED, "") in known:
                continue
            if study.tasks:
                _run_tasks(study, row, data, folder, seed, pretrained, known, rate)
                continue
            options = [*study.options_of(row), "--lr", rate]
            task = next(iter(study.runs_of(row, seed)))
            options = _filled(study, options, row, seed, task, folder, pretrained, study.rates.updates)
            _train(options, study.rates.updates, data, folder / f"rate_{rate}-{row}", seed)
            _finish(folder / f"rate_{rate}-{row}", options)


def _is_known(row: str, seed: int, task: str, known: set[Known]) -> bool:
    """Whether the table has a run of a row, on all of its tasks."""
    return all((row, str(seed), one) in known for one in task.split(","))


def _run_tasks(
    study: Study, row: str, data: Path, folder: Path, seed: int, pretrained: Path | None, known: set[Known],
    rate: str = "",
) -> None:  # fmt: skip
    """Train and score a row of a benchmark's tasks: one run, or one for each of its tasks; or one of its sweep."""
    seed = study.rows[row].seed or seed
    for task, run_name in study.runs_of(row, seed).items():
        run = folder / (f"rate_{rate}-{row}" if rate else run_name)
        updates = study.rates.updates if rate else study.updates_of(row, task)
        if (run / FINISHED).exists() or _is_known(row, seed, task, known):
            continue
        own = [*study.options_of(row), "--lr", rate] if rate else options_with_rate(study, row, folder)
        options = _filled(study, own, row, seed, task, folder, pretrained, updates)
        score = _filled(study, shlex.split(study.score), row, seed, task, folder, pretrained)
        _train(options, updates, data, run, seed)
        validate = ["fairseq-validate", data, "--user-dir", ROOT / "fairseq_mtmoe", "--cpu", *score]
        _execute([*validate, "--path", run / LAST, "--results-path", run / "scores"], run / "score.log")
        named = {"row": rated_row(row, rate), "seed": int(NO_SEED)} if rate else {"row": row, "seed": seed}
        _finish(run, options, **named, update=updates)


def _run_one(study: Study, row: str, data: Path, run: Path, seed: int, pair: str, pretrained: Path | None) -> None:
    """Train, average, score; and of the row that decides about entry, its perplexity beside trigrams'."""
    what, folder, path = study.rows[row], run.parent, str(run / AVERAGED)
    if (run / FINISHED).exists():
        return
    seed = what.seed or seed
    options = _filled(study, options_with_rate(study, row, folder), row, seed, pair, folder, pretrained)
    score = [*shlex.split(study.score), *shlex.split(what.score)]
    score = _filled(study, score, row, seed, pair, folder, pretrained)
    if what.branch:
        options += ["--restore-file", str(_branch(study, row, data, folder, seed))]
    if what.untrained:
        run.mkdir(parents=True, exist_ok=True)
        (path,), options = _filled(study, ["{pretrained}"], row, seed, pair, folder, pretrained), []
    else:
        _train(options, study.updates_of(row, pair), data, run, seed)
        average = ["mtmoe", "average", "--inputs", run, "--num-update-checkpoints", study.averaged]
        _execute([*average, "--output", path, "--overwrite"], run / "average.log")
    evaluate = ["mtmoe", "evaluate", data, "--path", path, "--out", run / "scores", "--cpu"]
    _execute([*evaluate, *score], run / "score.log")
    for name in study.further:
        evaluate = ["mtmoe", "evaluate", f"{data}-{name}", "--path", path, "--out", run / f"scores-{name}", "--cpu"]
        _execute([*evaluate, *score], run / "score.log")
    if study.entry and row == study.entry.row:
        script = ROOT / "benchmarks" / "source_free.py"
        _execute([sys.executable, script, data, "--path", path, "--out", run / ENTRY], run / "entry.log")
    _finish(run, options, row=row, seed=seed, task=pair, update=study.updates_of(row, pair))


def _filled(
    study: Study, options: list[str], row: str, seed: int, task: str, folder: Path, pretrained: Path | None,
    updates: int | None = None,
) -> list[str]:  # fmt: skip
    """Options of a run with its own names (UserError: they need `--pretrained`, which is not given)."""
    places: dict[str, object] = {"runs": folder, "pretrained": pretrained.resolve() if pretrained else "{pretrained}"}
    places |= {"updates": updates} if updates else {}
    found = study.filled(options, row, seed, task, **places)
    if unknown := [word for word in found if "{pretrained}" in word]:
        raise UserError(f"`--pretrained` must be a file, which `{unknown[0]}` stands for, but is not given.")
    return found


def options_with_rate(study: Study, row: str, folder: Path) -> list[str]:
    options, rate = study.options_of(row), study.rows[row].rate
    return [*options, "--lr", best_rate(study, folder, rate)] if rate else options


def _branch(study: Study, row: str, data: Path, folder: Path, seed: int) -> Path:
    """The checkpoint from which a row goes on; its run is trained up to there where it is not at hand."""
    what = study.rows[row]
    origin, name = folder / f"{what.branch}-{seed}", f"checkpoint_*_{what.updates}.pt"
    if not any(origin.glob(name)):
        _train(options_with_rate(study, what.branch, folder), what.updates, data, origin, seed)
    found = sorted(origin.glob(name))
    if not found:
        raise UserError(
            f"`{what.branch}` must keep its checkpoint of update {what.updates}, from which `{row}` goes on, but has "
            f"none in {origin}: give it `--save-interval-updates` and `--keep-interval-updates-pattern` that keep it."
        )
    return found[0]


def best_rate(study: Study, folder: Path, row: str) -> str:
    """The learning rate with the lowest perplexity of all pairs, or highest mean score, after the sweep's updates."""
    metric = SCORE if study.tasks else PERPLEXITY
    known = {line["row"]: float(line["value"]) for line in read_results(RESULTS)
             if line["study"] == folder.name and line["tier"] == "all" and line["metric"] == metric
             and line["update"] == str(study.rates.updates)}  # fmt: skip

    def loss_after_sweep(rate: str) -> float:
        name, run = rated_row(row, rate), folder / f"rate_{rate}-{row}"
        if study.tasks:
            return -(known[name] if name in known else fmean(float(one["value"]) for one in task_scores("", run)))
        value = known[name] if name in known else perplexities(run)["all"].value[-1]
        return math.inf if math.isnan(value) else value

    return min(study.rates.values, key=loss_after_sweep)


def _train(options: list[str], updates: int, data: Path, run: Path, seed: int) -> None:
    if (run / FINISHED).exists() or (run / AVERAGED).exists():
        return
    run.mkdir(parents=True, exist_ok=True)
    _say(f"{run.name}: {updates} updates")
    command = ["fairseq-train", data, "--user-dir", ROOT / "fairseq_mtmoe", "--cpu", "--save-dir", run]
    if (run / LAST).exists() and "--restore-file" in options:  # it has begun: on with its own
        at = options.index("--restore-file")
        options = options[:at] + options[at + 2 :]
    _execute([*command, "--seed", seed, "--max-update", updates, *options], run / "train.out")


def _execute(command: list[object], log: Path) -> None:
    """Run a command on one thread, its output after what is in `log`.

    Raises:
        UserError: it failed; the sentence names the log and has its last line.
    """
    words = list(map(str, command))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}  # this checkout's plugin
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    with open(log, "ab") as file:
        status = subprocess.run(words, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT).returncode
    if status:
        last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise UserError(f"`{words[0]}` must end well, but ended with status {status}: see {log}. It said last: {last}")


def _finish(run: Path, options: list[str], **own: object) -> None:
    if (run / FINISHED).exists():
        return
    write_text(run / FINISHED, json.dumps({**made_by(), "options": options, **own}, indent=1) + "\n")
    _say(f"{run.name}: finished")


def made_by() -> dict[str, str]:
    """What the table says of how a figure came about: code, machine and day."""
    commit, date = _git("rev-parse", "--short", "HEAD"), datetime.now(UTC).date().isoformat()
    return {"commit": commit, "version": __version__, "processor": _processor(), "date": date}


def check_committed(path: Path) -> None:
    """Raises UserError: the study or the code is not what the last commit has."""
    if _git("status", "--porcelain", "--", str(path), "fairseq_mtmoe") or not _git("ls-files", "--", str(path)):
        raise UserError(
            f"`{path.name}` and `fairseq_mtmoe/` must be committed before a study runs, but have changed since the "
            "last commit."
        )


@main.command()
@click.argument("name")
@click.option("--runs", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the runs.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="The table.")
def record(name: str, runs: Path, results: Path) -> None:
    """Put the figures of all finished runs of the study NAME into the table; those that it has stay as they are."""
    known = read_results(results)
    study = study_plan.load(STUDIES / f"{name}.yaml")
    # Rows of several runs grow by tasks
    grows = bool(study.tasks) or any(row.each for row in study.rows.values())
    parts = ("study", "row", "seed", *(("task", "tier", "metric", "update") if grows else ()))

    def is_new(line: dict[str, str]) -> bool:
        return tuple(line[part] for part in parts) not in are_known

    are_known = {tuple(line[part] for part in parts) for line in known}
    new: list[dict[str, str]] = []
    for finished in sorted((runs / name).glob(f"*/{FINISHED}")):
        run = finished.parent
        lines = [*task_scores(name, run), *gate_figures(name, run)] if study.tasks else figures_of(name, run)
        new += filter(is_new, lines)
        folders = {folder.name.removeprefix("scores").removeprefix("-"): folder for folder in run.glob("scores*")}
        sentences.keep(folders, results.parent / "sentences" / name / f"{run.name}.npz")
    of_study = [line for line in known if line["study"] == name]
    new += filter(is_new, means_of_tasks(study, [*of_study, *new]))
    write_results(results, [*known, *new])
    _say(f"{results}: {len(new)} figures more")


@main.command()
@click.argument("name")
@click.argument("run")
@click.option("--runs", type=click.Path(path_type=Path, exists=True), required=True, help="Folder of the runs.")
@click.option("--why", required=True, help="The reason, for the study's page.")
def abandon(name: str, run: str, runs: Path, why: str) -> None:
    """Give up RUN of the study NAME, such as base-3: record why, and put its folder aside."""
    folder = runs / name / run
    files = [path for path in folder.rglob("*") if path.is_file()]
    if not files or (folder / FINISHED).exists():
        raise UserError(f"`RUN` must be a run in {runs / name} that is not finished, but is {run} instead.")
    days = sorted(datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat() for path in files)
    study_plan.abandon(name, run, days[0], days[-1], why)
    folder.rename(folder.with_name(f"abandoned-{run}"))


def _git(*words: str) -> str:
    found = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
