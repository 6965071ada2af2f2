"""Gather the facts of a report's page from runs' folders, repeatedly if watched."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_mtmoe.analysis.differences import SEED, Differences, Sampling, find_differences
from fairseq_mtmoe.analysis.eval_folders import Evaluation, metrics_of, outputs_of, read_evaluations
from fairseq_mtmoe.analysis.questions import entropies, evenly, fixed_layers
from fairseq_mtmoe.analysis.report.warnings import Warned, warnings_of
from fairseq_mtmoe.analysis.rows import Row, Run, of_kind, read_run, run_names
from fairseq_mtmoe.analysis.run_log import FILE_NAME, Event, is_plain, provenance
from fairseq_mtmoe.analysis.score_files import JSON_FILE, MAJORITY, Scores, read_scores, score_file, score_files
from fairseq_mtmoe.analysis.scores import SPBLEU
from fairseq_mtmoe.analysis.significance import SAMPLES, Values, half_interval, resampled
from fairseq_mtmoe.errors import UserError, flag
from fairseq_mtmoe.io.files import text_lines

Compared = list[tuple[str, str, Differences]]
MOST_MOMENTS = {"experts": 30, "entropy": 100, "gates": 100, "sampling": 300, "selection": 300, "exchange": 300}
"""Largest number of moments that a page shows, by group of rows."""
FIRST = ("data", "commit", "hardware", "started", "seed")
NOT_OPTIONS = {
    *("event", "sizes", "tiers", "task_names", "task_ids", "options", "versions", "command", "folder"),
    *("parameters", "multiplications", *FIRST),
}
SIZES = {"parameters": "parameters", "multiplications": "multiplications per token"}
SAMPLING = Sampling(SEED, SAMPLES, 1000)
"""The page takes fewer trials than `mtmoe compare`, as it may be written many times."""
Z_95 = 1.96
OF_A_PAIR = 5
LONGEST = 600
"""Characters of a text; longer texts are cut."""


@dataclass(frozen=True)
class Sample:
    """One translation; `line` is its line in the test set, from 1."""

    pair: str
    line: int
    source: str | None
    references: tuple[str, ...]
    hypothesis: str


@dataclass
class ScoresOfRun:
    """A run's scores, as a page shows them."""

    scores: Scores = field(default_factory=lambda: Scores([], {}, {}))
    rows: list[Row] = field(default_factory=list)  # of pairs or tasks, then averages; `stderr`: half the interval
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class RunReport:
    """A page's facts of one run: rows with the moments shown, notes on omissions."""

    name: str
    unit: str
    setup: dict[str, Any]
    progress: dict[str, Any]
    rows: list[Row]
    sparsified: list[tuple[int, int | None]]
    scores: ScoresOfRun
    warnings: list[Warned]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Facts:
    """Everything that a page shows."""

    made: dict[str, str | None]
    watched: float | None  # seconds between refreshes; None for a static page
    runs: list[RunReport]
    comparisons: Compared  # names of two runs with the same test sets, and their differences
    notes: list[str]


class Gatherer:
    """Reads runs' folders or logs into facts, and reuses results of unchanged files.

    Without `score_folders`, scores come from the runs' folders. `advance` is called with each pair that was resampled.
    """

    def __init__(
        self, runs: Sequence[Path], score_folders: Sequence[Path] = (), advance: Callable[[str], None] = lambda _: None
    ) -> None:
        self.runs, self._score_folders, self._advance = list(runs), list(score_folders), advance
        self.latest: Facts | None = None  # the facts gathered last
        self._scores: dict[Path, tuple[object, ScoresOfRun]] = {}
        self._comparisons: tuple[object, tuple[Compared, list[str]]] = (None, ([], []))

    def stamp(self) -> object:
        """Return a value that changes with the runs' logs and scores."""
        logs = [run / FILE_NAME if run.is_dir() else run for run in self.runs]
        scores = [files[0] for files in self._score_files() if len(files) == 1]
        return [_stamp(path) for path in (*logs, *scores)]

    def gather(self, watched: float | None = None) -> Facts:
        """Gather the current facts (UserError: a file is damaged).

        watched: seconds until the page refreshes.
        """
        found, unnamed = [], []
        for path, name, files in zip(self.runs, run_names(self.runs), self._score_files(), strict=True):
            found.append(run_report(read_run(path, name), self._of_run(*files) if len(files) == 1 else ScoresOfRun()))
            if len(files) > 1:
                there = f"it has {len(files)} folders of scores, and `--scores` names none"
                unnamed.append(f"Scores of `{path}` are not shown: {there}.")
        comparisons, notes = self._compared(found)
        made = {**provenance(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.latest = Facts(made, watched, found, comparisons, unnamed + notes)
        return self.latest

    def _score_files(self) -> list[list[Path]]:
        """Return each run's files of scores; several if `--scores` should choose."""
        if self._score_folders:
            return [[score_file(folder)] for folder in self._score_folders]
        return [score_files(run) if run.is_dir() else [] for run in self.runs]

    def _of_run(self, file: Path) -> ScoresOfRun:
        known, stamp = self._scores.get(file), _stamp(file)
        if known is None or known[0] != stamp:
            self._scores[file] = stamp, shown_scores(file, self._advance)
        return self._scores[file][1]

    def _compared(self, runs: Sequence[RunReport]) -> tuple[Compared, list[str]]:
        """Compare every run with texts to the first one, by every metric; or say why not."""
        folders = {run.name: Path(run.scores.scores.folders[0]) for run in runs if run.scores.scores.pairs}
        stamp = [_stamp(folder / JSON_FILE) for folder in folders.values()]
        if len(folders) < 2:
            return [], []
        if self._comparisons[0] != stamp:
            try:
                evaluations = read_evaluations(list(folders.values()))
                name_of = dict(zip((one.name for one in evaluations), folders, strict=True))
                every = find_differences(evaluations, SAMPLING, None, self._advance)
                found = [(name_of[one.first.name], name_of[one.other.name], one) for one in every]
                self._comparisons = stamp, (found, [])
            except UserError as error:
                self._comparisons = stamp, ([], [f"Scores are not compared: {error}"])
        return self._comparisons[1]


def run_report(run: Run, scores: ScoresOfRun) -> RunReport:
    """Return a page's facts of one run, with no more moments than a page has room for."""
    setup, fixed = setup_of(run), fixed_layers(run)
    shown = [row for row in run.rows if row.group != "experts" or row.layer not in fixed]
    routed = [row for row in shown if row.group == "experts"]
    spread = [replace(row, group="entropy", metric="entropy", value=entropies(row.value)) for row in routed]
    rows = [row.at(evenly(len(row.value), MOST_MOMENTS.get(row.group, len(row.value)))) for row in shown + spread]
    notes = {
        "The run log has no events yet.": not run.events,
        "Options, versions and hardware are not shown: the run log is older than 0.1.10.":
            bool(run.events) and not setup["versions"],
        "Training between validations is not shown: the run made fewer updates than `--log-interval`, or its log is "
        "older than 0.1.10.": bool(run.events) and not run.of("train"),
        f"Shares of experts are not shown of {len(fixed)} layers with fixed gates: each {run.unit} has an expert of "
        "its own there.": bool(fixed),
    }  # fmt: skip
    said = [note for note, holds in notes.items() if holds]
    return RunReport(run.name, run.unit, setup, progress_of(run), rows, run.sparsified, scores, warnings_of(run),
                     [*said, *scores.notes])  # fmt: skip


def _stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return str(path), status.st_mtime_ns, status.st_size


def progress_of(run: Run) -> dict[str, Any]:
    """Return the run's progress by its last events.

    `best` is the update, metric and value of the best validation.
    """
    events, trained = run.events, of_kind(run.events, "train")
    measured = [event for event in events if event["event"] in ("train", "valid")]
    updates = max((int(event["update"]) for event in events if "update" in event), default=0)
    most, tokens = setup_of(run)["options"].get("max_update"), _last(measured, "tokens")
    is_limited = isinstance(most, int) and not isinstance(most, bool) and most > 0
    means = run.of("group", metric="mean")
    shown = [row for row in means if row.task == "all"] or means[-1:] or run.of("all", "tier", "pair", "task")[:1]
    best = [(int(row.moments.update[index]), row.metric, float(row.value[index]))
            for row in shown if (index := row.best_index) is not None]  # fmt: skip
    return {
        "updates": updates, "minutes": _last(measured, "minutes"), "tokens": None if tokens is None else int(tokens),
        "epoch": max((int(event["epoch"]) for event in of_kind(events, "sampling")), default=None),
        "skipped": int(_last(trained, "skipped") or 0) if trained else None,
        "best": best[0] if best else None, "finished": updates >= most if is_limited else None,
    }  # fmt: skip


def _last(events: Sequence[Event], name: str) -> Any:
    """Return a field's last value that is not None; None if there is none."""
    return next((event[name] for event in reversed(events) if event.get(name) is not None), None)


def setup_of(run: Run) -> dict[str, Any]:
    """Return the settings of the run's last start.

    Before 0.1.10, a log had only the options of sampling.
    """
    start: Event = next(reversed(of_kind(run.events, "run")), {})
    sampling = {name: value for name, value in start.items()
                if name not in NOT_OPTIONS and value is not None and is_plain(value)}  # fmt: skip
    # A model that became sparse logged its new size then.
    sized = [event for event in run.events if event["event"] in ("run", "sparsified") and "parameters" in event]
    return {
        **{name: start.get(name) for name in ("command", "folder", *FIRST)},
        **{name: _last(sized, name) for name in SIZES},
        "sizes": start.get("sizes", {}),
        "options": {**sampling, **start.get("options", {})},
        "versions": start.get("versions", {}),
    }


def compare_setups(setups: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, list[str]]], list[tuple[str, str]]]:
    """Return settings of `setup_of` that differ, a value per run, and common ones.

    With one run, all its settings are common. A value that a run does not have is empty, as is a default.
    """
    differing, common, settings = [], [], [_settings(setup) for setup in setups]
    folders = [setup.get("folder") or "" for setup in setups]
    for name in dict.fromkeys(name for one in settings for name in one):
        values = [one.get(name, "") for one in settings]
        if len({_meant(name, value, folder) for value, folder in zip(values, folders, strict=True)}) > 1:
            differing.append((name, values))
        elif values[0]:
            common.append((name, values[0]))
    return differing, common


def _settings(setup: Mapping[str, Any]) -> dict[str, str]:
    """Return a setup's single-valued settings: `FIRST`, then options, then versions."""
    found = {name: setup.get(name) for name in FIRST}
    found |= {title: None if (size := setup.get(name)) is None else f"{int(size):,}" for name, title in SIZES.items()}
    sizes = setup.get("sizes") or {}
    found["training sentences"] = (
        f"{int(sum(sizes.values())):,} in {len(sizes)} set{'s' * (len(sizes) > 1)}" if sizes else None
    )
    found |= {flag(name): value for name, value in sorted((setup.get("options") or {}).items())}
    found |= {f"{name} (version)": value for name, value in sorted((setup.get("versions") or {}).items())}
    return {name: _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _meant(name: str, value: str, folder: str) -> str:
    """Return a value with equal paths spelled alike, as far as its folder is known."""
    if not value or (name != "data" and os.sep not in value):
        return value
    return ":".join(os.path.normpath(os.path.join(folder, part)) for part in value.split(":"))


def shown_scores(file: Path, advance: Callable[[str], None]) -> ScoresOfRun:
    """Return a folder's scores; with its texts, also intervals and translations."""
    scores, rows = read_scores(file), []
    for row in (*scores.of("task"), *scores.averages) if scores.tasks else ():
        task = row.task if row.group == "group" else f"{scores.title(row.task)} ({row.metric})"
        metric = MAJORITY if row.run else "score"  # all tasks' metrics share a column; the majority class has another
        rows.append(replace(row, run="", task=task, metric=metric, stderr=Z_95 * row.stderr))
    if scores.tasks:
        return ScoresOfRun(scores, rows)
    (evaluation,) = read_evaluations([file.parent])
    errors = errors_of(evaluation, advance)
    found = [(row, errors.get((row.task, row.metric), math.nan)) for row in (*scores.rows, *scores.averages)]
    return ScoresOfRun(scores, [replace(row, stderr=error) for row, error in found], *samples_of(evaluation))


def errors_of(evaluation: Evaluation, advance: Callable[[str], None]) -> dict[tuple[str, str], float]:
    """Return half the 95% confidence interval of each score, by sacreBLEU's bootstrap.

    spBLEU has none.
    """
    draws: dict[str, dict[str, Values]] = {name: {} for name in metrics_of([evaluation]) if name != SPBLEU}
    for pair in evaluation.texts:
        for metric, of in draws.items():
            scorer, (output,) = outputs_of(metric, pair, [evaluation])
            of[pair] = resampled(scorer, output, SAMPLING.seed_of(pair), SAMPLING.samples)
        advance(pair)
    members = {**{pair: [pair] for pair in evaluation.texts}, **evaluation.scores.groups}
    return {
        (name, metric): half_interval(np.mean([of[pair] for pair in pairs], axis=0))
        for metric, of in draws.items()
        for name, pairs in members.items()
    }


def samples_of(evaluation: Evaluation) -> tuple[list[Sample], list[str]]:
    """Return sample translations of each pair, and a note on sources missing in `raw/`."""
    found: list[Sample] = []
    missing: dict[str, Path] = {}
    data = evaluation.scores.settings.get("data")
    for pair, texts in evaluation.texts.items():
        name, sources = f"{evaluation.scores.subset}.{pair}.{pair.partition('-')[0]}", list[str]()
        file = Path(data if isinstance(data, str) else "DATA") / "raw" / name
        with suppress(UserError):
            sources = text_lines(file) if isinstance(data, str) else []
        if len(sources) != len(texts.hypotheses):  # the test set has changed since
            missing[pair], sources = file, []
        lengths = [len(line or "") for line in texts.references[0]]
        ordered = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
        number = min(OF_A_PAIR, len(ordered))  # by length: from the middle of each fifth
        for index in (ordered[(2 * part + 1) * len(ordered) // (2 * number)] for part in range(number)):
            references = tuple(_cut(lines[index] or "") for lines in texts.references if lines[index])
            source = _cut(sources[index]) if sources else None
            found.append(Sample(pair, index + 1, source, references, _cut(texts.hypotheses[index])))
    more = f" (and {len(missing) - 1} more pairs)" if len(missing) > 1 else ""
    said = [f"Sources of translations are not shown of {pair}{more}: {file} is missing or of another test set."
             for pair, file in missing.items()]  # fmt: skip
    return found, said[:1]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
