"""The facts of runs, read from their folders; again and again where they are watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fairseq_mtmoe.analysis import run_log
from fairseq_mtmoe.analysis.evaluated import Evaluation, read_evaluations
from fairseq_mtmoe.analysis.provenance import provenance
from fairseq_mtmoe.analysis.run_facts.curves import best_of, curves_of
from fairseq_mtmoe.analysis.run_facts.experts import MOST_SHARES, entropy_of, expert_counts, experts_of, gates_of
from fairseq_mtmoe.analysis.run_facts.fields import Comparison, Facts, RunFacts, Sample, Scores
from fairseq_mtmoe.analysis.run_facts.samples import data_of, samples_of
from fairseq_mtmoe.analysis.run_facts.scores import comparisons_of, errors_of, read_score_file, scores_of
from fairseq_mtmoe.analysis.run_facts.setup import progress_of, setup_of, sparsified_of
from fairseq_mtmoe.analysis.run_facts.sources import sources_of
from fairseq_mtmoe.analysis.run_facts.training import exchange_of, sampling_of, selection_of, train_of
from fairseq_mtmoe.analysis.run_facts.warnings import warnings_of
from fairseq_mtmoe.analysis.run_log import FILE_NAME, Event
from fairseq_mtmoe.analysis.score_files import JSON_FILE
from fairseq_mtmoe.analysis.score_reading import score_file, score_files
from fairseq_mtmoe.analysis.series import run_names
from fairseq_mtmoe.errors import UserError

Advance = Callable[[str], None]


@dataclass
class ScoresOfRun:
    """What a folder of scores says of a run."""

    scores: Scores | None = None
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    evaluation: Evaluation | None = None


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
        self._comparisons: tuple[object, tuple[list[Comparison], list[str]]] | None = None

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
        read = [self._of_run(file) for file in self._score_files()]
        found = [
            run_facts(run_log.read(path), name, str(path), scores, MOST_SHARES // len(self.runs))
            for path, name, scores in zip(self.runs, names, read, strict=True)
        ]
        comparisons, notes = self._compared(names, read)
        made = provenance()
        self.latest = {
            "version": 1,
            "made": {
                "mtmoe": str(made["version"]),
                "commit": made["commit"],
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
            },
            "watched": watched,
            "runs": found,
            "comparisons": comparisons,
            "notes": [*self._unnamed_scores(), *notes],
        }
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
            self._scores[file] = stamp, read_scores(file, self._advance)
        return self._scores[file][1]

    def _compared(self, names: Sequence[str], read: Sequence[ScoresOfRun]) -> tuple[list[Comparison], list[str]]:
        """Where several runs have translated the same test sets; the evaluations are read once more, to be compared."""
        chosen = [(name, one.evaluation) for name, one in zip(names, read, strict=True) if one.evaluation is not None]
        if len(chosen) < 2:
            return [], []
        stamp = [_stamp(evaluation.folder / JSON_FILE) for _, evaluation in chosen]
        if self._comparisons is None or self._comparisons[0] != stamp:
            self._comparisons = stamp, self._compare(chosen)
        return self._comparisons[1]

    def _compare(self, chosen: Sequence[tuple[str, Evaluation]]) -> tuple[list[Comparison], list[str]]:
        try:
            evaluations = read_evaluations([evaluation.folder for _, evaluation in chosen])
        except UserError as error:
            return [], [f"Scores are not compared: {error}"]
        return comparisons_of(evaluations, [name for name, _ in chosen], self._advance), []


def run_facts(events: list[Event], name: str, path: str, scores: ScoresOfRun, most_shares: int) -> RunFacts:
    """Of one run.

    Args:
        events: of its log.
        most_shares: numbers of its heat maps.
    """
    curves, train, counts, setup = curves_of(events), train_of(events), expert_counts(events), setup_of(events)
    experts = experts_of(counts, most_shares)
    return {
        "name": name,
        "path": path,
        "setup": setup,
        "progress": progress_of(events, setup["options"], best_of(curves)),
        "curves": curves,
        "train": train,
        "sampling": sampling_of(events),
        "selection": selection_of(events),
        "sources": sources_of(events),
        "experts": experts,
        "entropy": entropy_of(counts),
        "gates": gates_of(events),
        "exchange": exchange_of(events),
        "sparsified": sparsified_of(events),
        "scores": scores.scores,
        "samples": scores.samples,
        "warnings": warnings_of(events, curves, train, counts),
        "notes": [*_notes(not events, setup["versions"] == {}, train["rows"] == [], experts["thinned"]), *scores.notes],
    }


def read_scores(file: Path, advance: Advance) -> ScoresOfRun:
    """A folder's scores, with confidence and some translations where its texts are there.

    Raises:
        UserError: the folder holds something else, or texts that do not give the scores.
    """
    content = read_score_file(file)
    if "pairs" not in content:
        return ScoresOfRun(scores_of(file, content, {}))
    (evaluation,) = read_evaluations([file.parent])
    samples, notes = samples_of(evaluation, data_of(content.get("settings", {})))
    return ScoresOfRun(scores_of(file, content, errors_of(evaluation, advance)), samples, notes, evaluation)


def _found_scores(run: Path) -> list[Path]:
    """The scores in a run's folder."""
    return score_files(run) if run.is_dir() else []


def _notes(is_empty: bool, is_old: bool, has_no_training: bool, thinned: bool) -> list[str]:
    if is_empty:
        return ["The run has logged nothing yet."]
    found = []
    if is_old:
        found.append("Options, versions and hardware are not shown: the run log is of before 0.1.10.")
    if has_no_training:
        found.append(
            "Nothing is shown of training between validations: the run has not made `--log-interval` updates, or its "
            "log is of before 0.1.10."
        )
    if thinned:
        found.append(
            "Not all validations are among the moments at which experts are shown: the page would be too large."
        )
    return found


def _stamp(path: Path) -> tuple[str, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return str(path), status.st_mtime_ns, status.st_size
