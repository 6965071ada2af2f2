"""Registered studies: which runs there are to be, the runs themselves, and their figures in one table.

    python benchmarks/study.py run captions DATA --runs RUNS             # all that is missing, one run after the other
    python benchmarks/study.py record captions --runs RUNS               # finished runs into results/results.csv

A run is one `fairseq-train` on one core, the mean of its last checkpoints, and its scores on the test sets; of a
benchmark's tasks it is scored as it ends, on their development sets. What was interrupted goes on where it was. A run
that the table has is not run again, whichever machine it ran on; only what another row still needs is: the run that
it branches from, up to the branch, or one whose files it reads. A study does not run if its file is not committed, or
has changed since its first run. Runs that are given up get a line in `studies/abandoned.csv` by hand.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import click
import sentences
import study_figures
import study_plan
from study_figures import ENTRY, FINISHED, NO_SEED, PERPLEXITY, RESULTS, ROOT, SCORE
from study_plan import STUDIES, Study, read_table
from timing import git, processor

from fairseq_mtmoe import __version__
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import write_text

AVERAGED, LAST = "averaged.pt", "checkpoint_last.pt"
PLUGIN = ("--user-dir", ROOT / "fairseq_mtmoe", "--cpu")
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
    known = {(line["row"], line["seed"], line["task"]) for line in read_table(RESULTS) if line["study"] == name}
    all_runs = Runs(study, data.resolve(), (runs / name).resolve(), pretrained and pretrained.resolve())
    rates_of = {study.rows[row].rate for row in chosen}
    for row in filter(rates_of.__contains__, study.rates.rows):
        for rate in study.rates.values:
            if (study_figures.rated_row(row, rate), NO_SEED, "") not in known:
                all_runs.run(row, study.rates.seed, next(iter(study.runs_of(row, 0))), rate)
    planned = []
    for seed in map(int, seeds.split(",")) if seeds else study.seeds:
        for row in chosen:
            own_seed = study.rows[row].seed or seed
            planned += [(row, own_seed, task) for task in study.runs_of(row, own_seed)]
    missing = [one for one in planned if not _is_known(*one, known)]
    read = " ".join(word for row, *_ in missing for word in study.options_of(row))
    for row, seed, task in planned:
        if (row, seed, task) in missing or f"{{runs}}/{row}-" in read:
            all_runs.run(row, seed, task)


def _is_known(row: str, seed: int, task: str, known: set[Known]) -> bool:
    """Whether the table has a run of a row, on all of its tasks."""
    return all((row, str(seed), one) in known for one in task.split(","))


@dataclass(frozen=True)
class Runs:
    """A study's runs in a folder, on a data directory, perhaps with a pretrained file."""

    study: Study
    data: Path
    folder: Path
    pretrained: Path | None = None

    def run(self, row: str, seed: int, task: str, rate: str = "") -> None:
        """Train and score a run of a row, or one of the sweep of learning rates; a finished one stays as it is."""
        study, what = self.study, self.study.rows[row]
        run = self.folder / (f"rate_{rate}-{row}" if rate else study.runs_of(row, seed)[task])
        if (run / FINISHED).exists():
            return
        updates = study.rates.updates if rate else study.updates_of(row, task)
        options = [*study.options_of(row), "--lr", rate] if rate else self.options_with_rate(row)
        options = self._filled(options, seed, task, updates)
        score = self._filled([*shlex.split(study.score), *shlex.split(what.score)], seed, task, updates)
        if what.branch:
            options += ["--restore-file", str(self.branch(row, seed))]
        path: str | Path = run / AVERAGED
        if what.untrained:
            run.mkdir(parents=True, exist_ok=True)
            (path,), options = self._filled(["{pretrained}"], seed, task, updates), []
        else:
            _train(options, updates, self.data, run, seed)
        if study.tasks:
            validate = ["fairseq-validate", self.data, *PLUGIN, *score, "--path", run / LAST]
            _execute([*validate, "--results-path", run / "scores"], run / "score.log")
        elif not rate:
            if not what.untrained:
                average = ["mtmoe", "average", "--inputs", run, "--num-update-checkpoints", study.averaged]
                _execute([*average, "--output", path, "--overwrite"], run / "average.log")
            self._evaluate(row, run, path, score)
        named: dict[str, object] = {"row": row, "seed": seed, "task": task}
        if rate:
            named = {"row": study_figures.rated_row(row, rate), "seed": int(NO_SEED)}
        facts = {**made_by(), "options": options, **named, "update": updates}
        write_text(run / FINISHED, json.dumps(facts, indent=1) + "\n")
        _say(f"{run.name}: finished")

    def _evaluate(self, row: str, run: Path, path: str | Path, score: list[str]) -> None:
        """Score a translator on all test sets; of the row that decides about entry, compare perplexities, too."""
        sets = {self.data: run / "scores"}
        for name in self.study.further:
            sets[Path(f"{self.data}-{name}")] = run / f"scores-{name}"
        for data, out in sets.items():
            _execute(["mtmoe", "evaluate", data, "--path", path, "--out", out, "--cpu", *score], run / "score.log")
        if self.study.entry and row == self.study.entry.row:
            script = ROOT / "benchmarks" / "source_free.py"
            _execute([sys.executable, script, self.data, "--path", path, "--out", run / ENTRY], run / "entry.log")

    def _filled(self, options: list[str], seed: int, task: str, updates: int) -> list[str]:
        """Options of a run with its own names (UserError: they need `--pretrained`, which is not given)."""
        names = {"task": task or ",".join(self.study.tasks), "seed": seed, "updates": updates, "runs": self.folder}
        if self.pretrained:
            names["pretrained"] = self.pretrained
        for name, value in names.items():
            options = [word.replace("{" + name + "}", str(value)) for word in options]
        if unknown := [word for word in options if "{pretrained}" in word]:
            raise UserError(f"`--pretrained` must be a file, which `{unknown[0]}` stands for, but is not given.")
        return options

    def options_with_rate(self, row: str) -> list[str]:
        options, rate = self.study.options_of(row), self.study.rows[row].rate
        return [*options, "--lr", self.best_rate(rate)] if rate else options

    def best_rate(self, row: str) -> str:
        """The rate with the lowest perplexity of all pairs, or highest mean score, after the sweep's updates."""
        study, metric = self.study, SCORE if self.study.tasks else PERPLEXITY
        known = {line["row"]: float(line["value"]) for line in read_table(RESULTS)
                 if line["study"] == self.folder.name and line["tier"] == "all" and line["metric"] == metric
                 and line["update"] == str(study.rates.updates)}  # fmt: skip

        def loss_after_sweep(rate: str) -> float:
            name, run = study_figures.rated_row(row, rate), self.folder / f"rate_{rate}-{row}"
            if name in known:
                value = known[name]
            elif study.tasks:
                value = fmean(float(one["value"]) for one in study_figures.task_scores("", run))
            else:
                value = study_figures.perplexities(run)["all"].value[-1]
            return math.inf if math.isnan(value) else -value if study.tasks else value

        return min(study.rates.values, key=loss_after_sweep)

    def branch(self, row: str, seed: int) -> Path:
        """The checkpoint from which a row goes on; its run is trained up to there where it is not at hand."""
        what = self.study.rows[row]
        origin, name = self.folder / f"{what.branch}-{seed}", f"checkpoint_*_{what.updates}.pt"
        if not any(origin.glob(name)):
            _train(self.options_with_rate(what.branch), what.updates, self.data, origin, seed)
        found = sorted(origin.glob(name))
        if not found:
            raise UserError(
                f"`{what.branch}` must keep its checkpoint of update {what.updates}, from which `{row}` goes on, but "
                f"{origin} has none: `--save-interval-updates` and `--keep-interval-updates-pattern` keep it."
            )
        return found[0]


def _train(options: list[str], updates: int, data: Path, run: Path, seed: int) -> None:
    if (run / FINISHED).exists() or (run / AVERAGED).exists():
        return
    run.mkdir(parents=True, exist_ok=True)
    _say(f"{run.name}: {updates} updates")
    if (run / LAST).exists() and "--restore-file" in options:  # it has begun: on with its own
        at = options.index("--restore-file")
        options = options[:at] + options[at + 2 :]
    command = ["fairseq-train", data, *PLUGIN, "--save-dir", run, "--seed", seed, "--max-update", updates, *options]
    _execute(command, run / "train.out")


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


def made_by() -> dict[str, str]:
    """What the table says of how a figure came about: code, machine and day."""
    commit, date = git("rev-parse", "--short", "HEAD"), datetime.now(UTC).date().isoformat()
    return {"commit": commit, "version": __version__, "processor": processor(), "date": date}


def check_committed(path: Path) -> None:
    """Raises UserError: the study or the code is not what the last commit has."""
    if git("status", "--porcelain", "--", str(path), "fairseq_mtmoe") or not git("ls-files", "--", str(path)):
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
    study, known = study_plan.load(STUDIES / f"{name}.yaml"), read_table(results)
    are_known = set(map(_key, known))
    found: list[dict[str, str]] = []
    for finished in sorted((runs / name).glob(f"*/{FINISHED}")):
        run = finished.parent
        if study.tasks:
            found += [*study_figures.task_scores(name, run), *study_figures.gate_figures(name, run)]
        else:
            found += study_figures.figures_of(name, run)
        folders = {folder.name.removeprefix("scores").removeprefix("-"): folder for folder in run.glob("scores*")}
        sentences.keep(folders, results.parent / "sentences" / name / f"{run.name}.npz")
    new = [line for line in found if _key(line) not in are_known]
    of_study = [line for line in known if line["study"] == name]
    new += [line for line in study_figures.means_of_tasks(study, [*of_study, *new]) if _key(line) not in are_known]
    study_figures.write_results(results, [*known, *new])
    _say(f"{results}: {len(new)} figures more")


def _key(line: dict[str, str]) -> tuple[str, ...]:
    return tuple(line[part] for part in ("study", "row", "seed", "task", "tier", "metric", "update"))


def _say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
