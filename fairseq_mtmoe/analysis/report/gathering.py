"""What a page shows of runs, read from their folders; again and again where they are watched."""

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
from fairseq_mtmoe.analysis.questions import entropies, evenly
from fairseq_mtmoe.analysis.report.warnings import Warned, warnings_of
from fairseq_mtmoe.analysis.rows import Row, Run, of_kind, read_run, run_names
from fairseq_mtmoe.analysis.run_log import FILE_NAME, Event, is_plain, provenance
from fairseq_mtmoe.analysis.score_files import JSON_FILE, MAJORITY, Scores, read_scores, score_file, score_files
from fairseq_mtmoe.analysis.scores import SPBLEU
from fairseq_mtmoe.analysis.significance import SAMPLES, Values, half_interval, resampled
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import text_lines

Compared = list[tuple[str, str, Differences]]
MOST_MOMENTS = {"experts": 30, "entropy": 100, "gates": 100, "sampling": 300, "selection": 300, "exchange": 300}
"""Of heat maps of experts, and of epochs."""
FIRST = ("data", "commit", "hardware", "started", "seed")
NOT_OPTIONS = {
    *("event", "sizes", "tiers", "task_names", "task_ids", "options", "versions", "command", "folder"),
    *("parameters", "multiplications", *FIRST),
}
SIZES = {"parameters": "parameters", "multiplications": "multiplications per token"}
SAMPLING = Sampling(SEED, SAMPLES, 1000)
"""Fewer trials than `mtmoe compare` makes, for a page that may be made anew again and again."""
Z_95 = 1.96
OF_A_PAIR = 5
LONGEST = 600
"""Characters of a text; what is longer is cut."""


@dataclass(frozen=True)
class Sample:
    """One translation; `line` of the test set is from 1."""

    pair: str
    line: int
    source: str | None
    references: tuple[str, ...]
    hypothesis: str


@dataclass
class ScoresOfRun:
    """What a folder of scores says of a run."""

    scores: Scores = field(default_factory=lambda: Scores([], {}, {}))
    rows: list[Row] = field(default_factory=list)  # of pairs or tasks, then of tiers or groups, with their confidence
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class RunReport:
    """What a page shows of one run; its rows have as many moments as are shown, notes say what is not."""

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
    watched: float | None  # seconds between two looks; None of a page that does not change
    runs: list[RunReport]
    comparisons: Compared  # the names of two runs with the same test sets, and how far they are apart
    notes: list[str]


class Gatherer:
    """Reads runs' folders or logs into facts; what takes long is not done again as long as its files are the same.

    Without `score_folders` scores are those in the runs' folders; `advance` is told the pairs that are resampled.
    """

    def __init__(
        self, runs: Sequence[Path], score_folders: Sequence[Path] = (), advance: Callable[[str], None] = lambda _: None
    ) -> None:
        self.runs, self._score_folders, self._advance = list(runs), list(score_folders), advance
        self.latest: Facts | None = None  # what was gathered last
        self._scores: dict[Path, tuple[object, ScoresOfRun]] = {}
        self._comparisons: tuple[object, tuple[Compared, list[str]]] = (None, ([], []))

    def stamp(self) -> object:
        """Changes when there is something new to show."""
        logs = [run / FILE_NAME if run.is_dir() else run for run in self.runs]
        scores = [files[0] for files in self._score_files() if len(files) == 1]
        return [_stamp(path) for path in (*logs, *scores)]

    def gather(self, watched: float | None = None) -> Facts:
        """All that is known now; somebody looks again after `watched` seconds (UserError: something is damaged)."""
        found, unnamed = [], []
        for path, name, files in zip(self.runs, run_names(self.runs), self._score_files(), strict=True):
            found.append(run_report(read_run(path, name), self._of_run(*files) if len(files) == 1 else ScoresOfRun()))
            if len(files) > 1:
                there = f"there are {len(files)} folders of them, and `--scores` names none"
                unnamed.append(f"Scores of `{path}` are not shown: {there}.")
        comparisons, notes = self._compared(found)
        made = {**provenance(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.latest = Facts(made, watched, found, comparisons, unnamed + notes)
        return self.latest

    def _score_files(self) -> list[list[Path]]:
        """Of each run; several where nobody says which are meant."""
        if self._score_folders:
            return [[score_file(folder)] for folder in self._score_folders]
        return [score_files(run) if run.is_dir() else [] for run in self.runs]

    def _of_run(self, file: Path) -> ScoresOfRun:
        known, stamp = self._scores.get(file), _stamp(file)
        if known is None or known[0] != stamp:
            self._scores[file] = stamp, shown_scores(file, self._advance)
        return self._scores[file][1]

    def _compared(self, runs: Sequence[RunReport]) -> tuple[Compared, list[str]]:
        """Every run with texts but the first beside the first, by every metric; or why not."""
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
    """What a page shows of one run, with no more moments of experts and epochs than it has room for."""
    setup = setup_of(run)
    spread = [replace(row, group="entropy", metric="entropy", value=entropies(row.value)) for row in run.of("experts")]
    rows = [row.at(evenly(len(row.value), MOST_MOMENTS.get(row.group, len(row.value)))) for row in run.rows + spread]
    notes = {
        "The run has logged nothing yet.": not run.events,
        "Options, versions and hardware are not shown: the run log is of before 0.1.10.":
            bool(run.events) and not setup["versions"],
        "Nothing is shown of training between validations: the run has not made `--log-interval` updates, or its log "
        "is of before 0.1.10.": bool(run.events) and not run.of("train"),
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
    """How far it is, by the last events that say so; `best` is the update, metric and value of the best validation."""
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
    """The last value of a field that is not None; None where there is none."""
    return next((event[name] for event in reversed(events) if event.get(name) is not None), None)


def setup_of(run: Run) -> dict[str, Any]:
    """What the run's last start said of it; until 0.1.9 a log had its sampling alone for options."""
    start: Event = next(reversed(of_kind(run.events, "run")), {})
    sampling = {name: value for name, value in start.items()
                if name not in NOT_OPTIONS and value is not None and is_plain(value)}  # fmt: skip
    # The last word on the model's size is that of the moment at which it became sparse.
    sized = [event for event in run.events if event["event"] in ("run", "sparsified") and "parameters" in event]
    return {
        **{name: start.get(name) for name in ("command", "folder", *FIRST)},
        **{name: _last(sized, name) for name in SIZES},
        "sizes": start.get("sizes", {}),
        "options": {**sampling, **start.get("options", {})},
        "versions": start.get("versions", {}),
    }


def compare_setups(setups: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, list[str]]], list[tuple[str, str]]]:
    """Settings of `setup_of` that differ, with a value for each run, and those in common: of one run all that it has.

    A value that a run does not have, or that is a default, is empty.
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
    """Everything of a setup that has one value, what was asked for first, then options, then versions."""
    found = {name: setup.get(name) for name in FIRST}
    found |= {title: None if (size := setup.get(name)) is None else f"{int(size):,}" for name, title in SIZES.items()}
    sizes = setup.get("sizes") or {}
    found["training sentences"] = f"{int(sum(sizes.values())):,} in {len(sizes)} sets" if sizes else None
    found |= {f"--{name.replace('_', '-')}": value for name, value in sorted((setup.get("options") or {}).items())}
    found |= {f"{name} (version)": value for name, value in sorted((setup.get("versions") or {}).items())}
    return {name: _text(value) for name, value in found.items()}


def _text(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    return "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _meant(name: str, value: str, folder: str) -> str:
    """A value in which spellings of one path are alike, as far as the folder is known in which it begins."""
    if not value or (name != "data" and os.sep not in value):
        return value
    return ":".join(os.path.normpath(os.path.join(folder, part)) for part in value.split(":"))


def shown_scores(file: Path, advance: Callable[[str], None]) -> ScoresOfRun:
    """A folder's scores, with confidence and some translations where its texts are there."""
    scores, rows = read_scores(file), []
    for row in (*scores.of("task"), *scores.averages) if scores.tasks else ():
        task = row.task if row.group == "group" else f"{scores.title(row.task)} ({row.metric})"
        metric = MAJORITY if row.run else "score"  # all metrics of tasks are one column, and the majority class another
        rows.append(replace(row, run="", task=task, metric=metric, stderr=Z_95 * row.stderr))
    if scores.tasks:
        return ScoresOfRun(scores, rows)
    (evaluation,) = read_evaluations([file.parent])
    errors = errors_of(evaluation, advance)
    found = [(row, errors.get((row.task, row.metric), math.nan)) for row in (*scores.rows, *scores.averages)]
    return ScoresOfRun(scores, [replace(row, stderr=error) for row, error in found], *samples_of(evaluation))


def errors_of(evaluation: Evaluation, advance: Callable[[str], None]) -> dict[tuple[str, str], float]:
    """Half of the 95% confidence interval of each score, by sacreBLEU's bootstrap; nothing of spBLEU."""
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
    """Some translations of each pair, and what to say of sources that `raw/` of the data directory does not have."""
    found: list[Sample] = []
    missing: dict[str, Path] = {}
    data = evaluation.scores.settings.get("data")
    for pair, texts in evaluation.texts.items():
        name, sources = f"{evaluation.scores.subset}.{pair}.{pair.partition('-')[0]}", list[str]()
        file = Path(data if isinstance(data, str) else "DATA") / "raw" / name
        with suppress(UserError):
            sources = text_lines(file) if isinstance(data, str) else []
        if len(sources) != len(texts.hypotheses):  # there is another test set by now
            missing[pair], sources = file, []
        lengths = [len(line or "") for line in texts.references[0]]
        ordered = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
        number = min(OF_A_PAIR, len(ordered))  # in the middle of the first fifth by length, of the second, and so on
        for index in (ordered[(2 * part + 1) * len(ordered) // (2 * number)] for part in range(number)):
            references = tuple(_cut(lines[index] or "") for lines in texts.references if lines[index])
            source = _cut(sources[index]) if sources else None
            found.append(Sample(pair, index + 1, source, references, _cut(texts.hypotheses[index])))
    more = f" (and of {len(missing) - 1} pairs more)" if len(missing) > 1 else ""
    said = [f"Sources of translations are not shown of {pair}{more}: there is no {file} to read them from."
            for pair, file in missing.items()]  # fmt: skip
    return found, said[:1]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
