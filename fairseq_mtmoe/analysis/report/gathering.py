"""What a page shows of runs, read from their folders; again and again where they are watched.

Of each run what was run and how far it is; of several, where their settings differ and what they have in common.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairseq_mtmoe.analysis.differences import Differences, find_differences
from fairseq_mtmoe.analysis.eval_folders import read_evaluations
from fairseq_mtmoe.analysis.questions import entropies, evenly
from fairseq_mtmoe.analysis.report.scores import SAMPLING, ScoresOfRun, shown_scores
from fairseq_mtmoe.analysis.report.warnings import Warned, warnings_of
from fairseq_mtmoe.analysis.rows import Row, Run, of_kind, read_run, run_names
from fairseq_mtmoe.analysis.run_log import FILE_NAME, Event, is_plain, provenance
from fairseq_mtmoe.analysis.score_files import JSON_FILE, score_file, score_files
from fairseq_mtmoe.errors import UserError

Compared = list[tuple[str, str, Differences]]
MOST_ENTROPIES = 100
MOST_MOMENTS = {"experts": 30, "gates": MOST_ENTROPIES, "sampling": 300, "selection": 300, "exchange": 300}
"""Of heat maps of experts, and of epochs."""
FIRST = ("data", "commit", "hardware", "started", "seed")
NOT_OPTIONS = {
    *("event", "sizes", "tiers", "task_names", "task_ids", "options", "versions", "command", "folder"),
    *("parameters", "multiplications", *FIRST),
}
SIZES = {"parameters": "parameters", "multiplications": "multiplications per token"}


@dataclass(frozen=True)
class Progress:
    """How far a run is; None where nobody knows.

    Attributes:
        best: the update, metric and value of the validation with the lowest perplexity, or of a benchmark with the
            highest mean over its tasks.
        finished: whether it has made the updates that `--max-update` says.
    """

    updates: int
    minutes: float | None
    tokens: int | None
    epoch: int | None
    skipped: int | None
    best: tuple[int, str, float] | None
    finished: bool | None


@dataclass
class RunReport:
    """What a page shows of one run; its rows have as many moments as are shown, notes say what is not."""

    name: str
    unit: str
    setup: dict[str, Any]
    progress: Progress
    rows: list[Row]
    sparsified: list[tuple[int, int | None]]
    scores: ScoresOfRun
    warnings: list[Warned]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Facts:
    """Everything that a page shows.

    Attributes:
        watched: seconds between two looks; None of a page that does not change.
        comparisons: of runs that have translated the same test sets: the names of two, and how far they are apart.
    """

    made: dict[str, str | None]
    watched: float | None
    runs: list[RunReport]
    comparisons: Compared
    notes: list[str]


class Gatherer:
    """Reads runs' folders into facts; what takes long is not done again as long as its files are the same.

    Args:
        runs: folders with a run log, or run logs.
        score_folders: one for each run; empty: those that lie in the runs' folders, where there are some.
        advance: is told the name of every pair whose scores are resampled.

    Attributes:
        latest: what was gathered last.
    """

    def __init__(
        self,
        runs: Sequence[Path],
        score_folders: Sequence[Path] = (),
        advance: Callable[[str], None] = lambda pair: None,
    ) -> None:
        self.runs, self._score_folders, self._advance = list(runs), list(score_folders), advance
        self.latest: Facts | None = None
        self._scores: dict[Path, tuple[object, ScoresOfRun]] = {}
        self._comparisons: tuple[object, tuple[Compared, list[str]]] = (None, ([], []))

    def stamp(self) -> object:
        """Changes when there is something new to show."""
        logs = [run / FILE_NAME if run.is_dir() else run for run in self.runs]
        scores = [files[0] for files in self._score_files() if len(files) == 1]
        return [_stamp(path) for path in (*logs, *scores)]

    def gather(self, watched: float | None = None) -> Facts:
        """All that is known now; somebody looks again after `watched` seconds.

        Raises:
            UserError: a run has no log, or it or scores are damaged.
        """
        names, files = run_names(self.runs), self._score_files()
        scores = [self._of_run(one[0]) if len(one) == 1 else ScoresOfRun() for one in files]
        found = [run_report(read_run(path, name), of) for path, name, of in zip(self.runs, names, scores, strict=True)]
        comparisons, notes = self._compared(dict(zip(names, scores, strict=True)))
        unnamed = [
            f"Scores of `{run}` are not shown: there are {len(one)} folders of them, and `--scores` names none."
            for run, one in zip(self.runs, files, strict=True)
            if len(one) > 1
        ]
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

    def _compared(self, scores: dict[str, ScoresOfRun]) -> tuple[Compared, list[str]]:
        """Every run with texts but the first beside the first, by every metric; or why not."""
        folders = {name: of.evaluation.folder for name, of in scores.items() if of.evaluation is not None}
        stamp = [_stamp(folder / JSON_FILE) for folder in folders.values()]
        if len(folders) < 2:
            return [], []
        if self._comparisons[0] != stamp:
            try:
                evaluations = read_evaluations(list(folders.values()))
                name_of = {id(one): name for name, one in zip(folders, evaluations, strict=True)}
                found = find_differences(evaluations, SAMPLING, None, self._advance)
                of_names = [(name_of[id(one.first)], name_of[id(one.other)], one) for one in found]
                self._comparisons = stamp, (of_names, [])
            except UserError as error:
                self._comparisons = stamp, ([], [f"Scores are not compared: {error}"])
        return self._comparisons[1]


def run_report(run: Run, scores: ScoresOfRun) -> RunReport:
    """What a page shows of one run, with no more moments of experts and epochs than it has room for."""
    setup = setup_of(run)
    rows = [row.at(evenly(len(row.value), MOST_MOMENTS.get(row.group, len(row.value)))) for row in run.rows]
    of_experts = [row.at(evenly(len(row.value), MOST_ENTROPIES)) for row in run.of("experts")]
    rows += [replace(row, group="entropy", metric="entropy", value=entropies(row.value)) for row in of_experts]
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


def progress_of(run: Run) -> Progress:
    """How far it is, by the last events that say so."""
    events, trained = run.events, of_kind(run.events, "train")
    measured = [event for event in events if event["event"] in ("train", "valid")]
    updates = max((int(event["update"]) for event in events if "update" in event), default=0)
    most, tokens = setup_of(run)["options"].get("max_update"), _last(measured, "tokens")
    is_limited = isinstance(most, int) and not isinstance(most, bool) and most > 0
    return Progress(
        updates, _last(measured, "minutes"), None if tokens is None else int(tokens),
        max((int(event["epoch"]) for event in of_kind(events, "sampling")), default=None),
        int(_last(trained, "skipped") or 0) if trained else None, _best(run), updates >= most if is_limited else None,
    )  # fmt: skip


def _best(run: Run) -> tuple[int, str, float] | None:
    means = run.of("group", metric="mean")
    chosen = [row for row in means if row.task == "all"] or means[-1:] or run.of("all", "tier", "pair", "task")[:1]
    if not chosen or (place := chosen[0].place_of_best) is None:
        return None
    return int(chosen[0].moments.update[place]), chosen[0].metric, float(chosen[0].value[place])


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


@dataclass
class Setups:
    """Settings by name, that differ (a value for each run) or are common; the commands of runs, as far as known.

    A value that a run does not have, or that is a default, is empty.
    """

    runs: list[str]
    differing: list[tuple[str, list[str]]] = field(default_factory=list)
    common: list[tuple[str, str]] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)


def setups_of(setups: Mapping[str, Mapping[str, Any]]) -> Setups:
    """Compare setups, as `setup_of` returns them, by the runs' names; of one run everything is in common."""
    found, settings = Setups(list(setups)), [_settings(setup) for setup in setups.values()]
    folders = [setup.get("folder") or "" for setup in setups.values()]
    for name in dict.fromkeys(name for one in settings for name in one):
        values = [one.get(name, "") for one in settings]
        if len({_meant(name, value, folder) for value, folder in zip(values, folders, strict=True)}) > 1:
            found.differing.append((name, values))
        elif values[0]:
            found.common.append((name, values[0]))
    found.commands = [(name, one["command"]) for name, one in setups.items() if one.get("command")]
    return found


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
