"""What a page shows of runs, read from their folders; again and again where they are watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fairseq_mtmoe.analysis.differences import Differences, find_differences
from fairseq_mtmoe.analysis.eval_folders import Evaluation, read_evaluations
from fairseq_mtmoe.analysis.questions import entropy, evenly
from fairseq_mtmoe.analysis.report.scores import SAMPLING, ScoresOfRun, shown_scores
from fairseq_mtmoe.analysis.report.setups import Progress, progress_of, setup_of
from fairseq_mtmoe.analysis.report.warnings import Warned, warnings_of
from fairseq_mtmoe.analysis.rows import Row, Run, read_run, run_names
from fairseq_mtmoe.analysis.run_log import FILE_NAME, provenance
from fairseq_mtmoe.analysis.score_files import JSON_FILE, score_file, score_files
from fairseq_mtmoe.errors import UserError

Advance = Callable[[str], None]
MOST_MOMENTS = 30  # of heat maps of experts
MOST_ENTROPIES = 100
MOST_EPOCHS = 300


@dataclass
class RunReport:
    """What a page shows of one run; its rows have as many moments as are shown.

    Attributes:
        notes: what the page does not show, and why.
    """

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
    comparisons: list[tuple[str, str, Differences]]
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
        self, runs: Sequence[Path], score_folders: Sequence[Path] = (), advance: Advance = lambda pair: None
    ) -> None:
        self.runs, self._score_folders, self._advance = list(runs), list(score_folders), advance
        self.latest: Facts | None = None
        self._scores: dict[Path, tuple[object, ScoresOfRun]] = {}
        self._comparisons: tuple[object, tuple[list[tuple[str, str, Differences]], list[str]]] | None = None

    def stamp(self) -> object:
        """Changes when there is something new to show."""
        logs = [run / FILE_NAME if run.is_dir() else run for run in self.runs]
        return [_stamp(path) for path in (*logs, *filter(None, self._score_files()))]

    def gather(self, watched: float | None = None) -> Facts:
        """All that is known now.

        Args:
            watched: seconds after which somebody looks again.

        Raises:
            UserError: a run has no log, or it or scores are damaged.
        """
        names = run_names(self.runs)
        scores = [self._of_run(file) for file in self._score_files()]
        found = [run_report(read_run(path, name), of) for path, name, of in zip(self.runs, names, scores, strict=True)]
        comparisons, notes = self._compared(names, scores)
        made = {**provenance(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
        self.latest = Facts(made, watched, found, comparisons, [*self._unnamed_scores(), *notes])
        return self.latest

    def _score_files(self) -> list[Path | None]:
        if self._score_folders:
            return [score_file(folder) for folder in self._score_folders]
        found = map(_found_scores, self.runs)
        return [files[0] if len(files) == 1 else None for files in found]

    def _unnamed_scores(self) -> list[str]:
        """A note for each run with several folders of scores, of which nobody says which is meant."""
        counts = {} if self._score_folders else {run: len(_found_scores(run)) for run in self.runs}
        return [
            f"Scores of `{run}` are not shown: there are {count} folders of them, and `--scores` names none."
            for run, count in counts.items()
            if count > 1
        ]

    def _of_run(self, file: Path | None) -> ScoresOfRun:
        if file is None:
            return ScoresOfRun()
        known, stamp = self._scores.get(file), _stamp(file)
        if known is None or known[0] != stamp:
            self._scores[file] = stamp, shown_scores(file, self._advance)
        return self._scores[file][1]

    def _compared(
        self, names: Sequence[str], scores: Sequence[ScoresOfRun]
    ) -> tuple[list[tuple[str, str, Differences]], list[str]]:
        """Where several runs have translated the same test sets; the evaluations are read once more, to be compared."""
        chosen = {name: of.evaluation for name, of in zip(names, scores, strict=True) if of.evaluation is not None}
        if len(chosen) < 2:
            return [], []
        stamp = [_stamp(evaluation.folder / JSON_FILE) for evaluation in chosen.values()]
        if self._comparisons is None or self._comparisons[0] != stamp:
            self._comparisons = stamp, self._compare(chosen)
        return self._comparisons[1]

    def _compare(self, chosen: dict[str, Evaluation]) -> tuple[list[tuple[str, str, Differences]], list[str]]:
        """Every run but the first beside the first, by every metric."""
        try:
            evaluations = read_evaluations([evaluation.folder for evaluation in chosen.values()])
        except UserError as error:
            return [], [f"Scores are not compared: {error}"]
        name_of = {id(one): name for name, one in zip(chosen, evaluations, strict=True)}
        found = find_differences(evaluations, SAMPLING, None, self._advance)
        return [(name_of[id(one.first)], name_of[id(one.other)], one) for one in found], []


def run_report(run: Run, scores: ScoresOfRun) -> RunReport:
    """What a page shows of one run, with no more moments of experts and epochs than it has room for."""
    setup = setup_of(run)
    return RunReport(run.name, run.unit, setup, progress_of(run), _shown_rows(run), run.sparsified, scores,
                     warnings_of(run), [*_notes(run, setup), *scores.notes])  # fmt: skip


def _shown_rows(run: Run) -> list[Row]:
    """Without `loss` of everything's parts, and with the entropy of experts."""
    most = {"experts": MOST_MOMENTS, **dict.fromkeys(("sampling", "selection", "exchange"), MOST_EPOCHS),
            "gates": MOST_ENTROPIES}  # fmt: skip
    rows = [row.at(evenly(len(row.value), most.get(row.group, len(row.value)))) for row in run.rows]
    of_experts = [row.at(evenly(len(row.value), MOST_ENTROPIES)) for row in run.of("experts")]
    return rows + [replace(row, group="entropy", metric="entropy", value=entropy(row)) for row in of_experts]


def _found_scores(run: Path) -> list[Path]:
    """The scores in a run's folder."""
    return score_files(run) if run.is_dir() else []


def _notes(run: Run, setup: dict[str, Any]) -> list[str]:
    if not run.events:
        return ["The run has logged nothing yet."]
    found = []
    if not setup["versions"]:
        found.append("Options, versions and hardware are not shown: the run log is of before 0.1.10.")
    if not run.of("train"):
        found.append(
            "Nothing is shown of training between validations: the run has not made `--log-interval` updates, or its "
            "log is of before 0.1.10."
        )
    return found


def _stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return str(path), status.st_mtime_ns, status.st_size
