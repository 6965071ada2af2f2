"""The page of `mtmoe report`: sections with texts, tables and charts of runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.pages import Part, Section
from fairseq_mtmoe.core.tables import Table
from fairseq_mtmoe.report import comparison, differences, score_tables
from fairseq_mtmoe.report.charts import models
from fairseq_mtmoe.report.charts.look import Chart, spec_of
from fairseq_mtmoe.report.charts.pictures import pictures_of
from fairseq_mtmoe.report.differences import SEED, Differences, Sampling, find_differences
from fairseq_mtmoe.report.eval_folders import read_evaluations
from fairseq_mtmoe.report.rows import Run, read_run, run_names
from fairseq_mtmoe.report.run_log import provenance
from fairseq_mtmoe.report.score_files import JSON_FILE, Scores, read_scores, score_files
from fairseq_mtmoe.report.setup import compared_settings, progress_of, start_of
from fairseq_mtmoe.report.significance import SAMPLES
from fairseq_mtmoe.report.warnings import warnings_of

SAMPLING = Sampling(SEED, SAMPLES, 1000)
"""The page takes fewer trials than `mtmoe compare`, as it may be written many times."""

# Names of charts by the titles of sections.
CHARTS = {
    "Differences of scores": ("differences",),
    "Validation": ("perplexity", "perplexity_minutes", "pairs", "metrics", "metrics_minutes"),
    "Training": ("training",),
    "Sampling": ("sampling", "selection"),
    "Experts": ("experts", "expert_map", "balance"),
    "Gates": ("gates", "gate_movement", "embeddings"),
    "Sources": ("sources",),
    "Speed": ("speed",),
}


@dataclass
class Shown:
    """Content of a page: runs, their scores by the runs' names, and what is left out."""

    runs: list[Run]
    scores: dict[str, Scores] = field(default_factory=dict)
    differences: list[Differences] = field(default_factory=list)
    systems: list[comparison.System] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_shown(paths: Sequence[Path], score_folders: Sequence[Path] = ()) -> Shown:
    """Read runs' folders or logs, and their scores (UserError: a file is damaged).

    Without `score_folders`, one for each run, scores come from the runs' folders.
    """
    names = run_names(paths)
    shown = Shown([*map(read_run, paths, names)])
    for name, folder in zip(names, score_folders or paths, strict=True):
        files = score_files(folder) if folder.is_dir() or score_folders else []
        if len(files) == 1 or score_folders:
            shown.scores[name] = read_scores(folder)
        elif files:
            several = f"it has {len(files)} folders of scores, and `--scores` names none"
            shown.notes.append(f"Scores of `{folder}` are not shown: {several}.")
    try:
        _compare(shown)
    except UserError as error:
        shown.notes.append(f"Scores are not compared: {error}")
    return shown


def _compare(shown: Shown) -> None:
    """Compare the runs' scores (UserError: they have other test sets)."""
    folders = {}
    benchmarks = {}
    stamps = []
    for name, scores in shown.scores.items():
        folder = scores.folders[0]
        if scores.pairs:
            folders[name] = folder
            stamps.append(Path(folder, JSON_FILE).stat().st_mtime_ns)
        else:
            benchmarks[name] = [scores]
    if len(folders) > 1:
        shown.differences = _differences(tuple(folders), tuple(folders.values()), tuple(stamps))
    if len(benchmarks) > 1:
        shown.systems = comparison.systems_of(benchmarks)


@lru_cache(maxsize=1)
def _differences(
    names: tuple[str, ...], folders: tuple[str, ...], stamps: tuple[int, ...]
) -> list[Differences]:
    """Return the differences between runs' evaluations, once for the same files."""
    read = read_evaluations([*map(Path, folders)])
    evaluations = [
        replace(evaluation, name=name) for name, evaluation in zip(names, read, strict=True)
    ]
    return find_differences(evaluations, SAMPLING)


def about_this_page() -> str:
    """Return a sentence on what made the page, and when."""
    made = provenance()
    commit = f" (`{made['commit']}`)" if made["commit"] else ""
    return f"Made by `mtmoe report` {made['version']}{commit}, {datetime.now(UTC):%Y-%m-%d %H:%M}."


def charts_of(shown: Shown, states: Mapping[str, Mapping[str, Any]]) -> dict[str, Chart]:
    """Return the page's charts by name, for pictures."""
    charts = pictures_of(shown.runs, states)
    if shown.differences:
        charts["differences"] = models.differences(shown.differences)
    return charts


def sections_of(shown: Shown, states: Mapping[str, Mapping[str, Any]]) -> list[Section]:
    """Return the page's sections; `states` are the runs' checkpoints, by name."""
    charts = charts_of(shown, states)
    sections = [
        Section("Warnings", _warnings(shown)),
        Section("Progress", [_progress(shown.runs)]),
        *_setup(shown.runs),
        *_scores(shown),
    ]
    for title, names in CHARTS.items():
        specs = [spec_of(charts[name]) for name in names if name in charts]
        if specs:
            sections.append(Section(title, specs))
    return sections


def _warnings(shown: Shown) -> list[Part]:
    texts = []
    for run in shown.runs:
        prefix = f"{run.name}: " if len(shown.runs) > 1 else ""
        if not run.events:
            texts.append(f"{prefix}The run log has no events yet.")
        for text in warnings_of(run):
            texts.append(prefix + text)
    return [texts or "No warnings.", *shown.notes]


def _progress(runs: Sequence[Run]) -> Table:
    rows = [[run.name, *progress_of(run).values()] for run in runs]
    columns = ["run", *progress_of(runs[0])]
    return Table(columns, rows, texts=(0, len(columns) - 1))


def _setup(runs: Sequence[Run]) -> list[Section]:
    differing, common = compared_settings(runs)
    sections = []
    if differing:
        columns = ["setting", *[run.name for run in runs]]
        note = "An empty cell is the default, or was not logged."
        table = Table(columns, differing, texts=len(columns))
        sections.append(Section("Settings that differ", [table, note]))
    if common:
        table = Table(["setting", "value"], common, texts=2)
        sections.append(Section("Common settings", [table], folded=len(runs) > 1))
    commands = {run.name: start_of(run).get("command") or "" for run in runs}
    if any(commands.values()):
        table = Table(["run", "command"], [*commands.items()], texts=2)
        sections.append(Section("Commands", [table], folded=True))
    return sections


def _scores(shown: Shown) -> list[Section]:
    """Return differences of evaluations with their significance, or each run's scores."""
    if shown.differences:
        parts: list[Part] = []
        for compared in shown.differences:
            parts += [compared.title, differences.difference_table(compared)]
        return [Section("Scores", [*parts, differences.notes(shown.differences, SAMPLING)])]
    if shown.systems:
        table = comparison.mean_table(shown.systems, "score")
        return [Section("Scores", [table, comparison.notes(shown.systems)])]
    parts = []
    for name, scores in shown.scores.items():
        parts.append(f"{name}: {scores.subset}, {', '.join(scores.checkpoints)}")
        parts.append(score_tables.score_table(scores))
        remarks = score_tables.notes(scores) if scores.tasks else scores.remarks
        parts.append([*remarks, *scores.signatures])
    return [Section("Scores", parts)] if parts else []
