"""What `fairseq-validate` says of a checkpoint beside fairseq's line: a table and, with `--results-path`, two files."""

from __future__ import annotations

import hashlib
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fairseq_mtmoe.analysis.published import published_row
from fairseq_mtmoe.analysis.run_log import provenance
from fairseq_mtmoe.analysis.score_files import JSON_FILE, scores_in, scores_of_tasks
from fairseq_mtmoe.analysis.score_tables import notes, score_table, write_scores
from fairseq_mtmoe.checkpoints import checksum
from fairseq_mtmoe.checkpoints.file_io import peek
from fairseq_mtmoe.data.nlu.reading import source_files
from fairseq_mtmoe.data.nlu.table import Kind, TaskRow
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.io.files import check_writable, read_json
from fairseq_mtmoe.task_types import Classification, Predictions, Regression
from fairseq_mtmoe.tasks._benchmark.metrics import Values, score, standard_error


@dataclass(frozen=True)
class FoundSet:
    """What was predicted of a set.

    Attributes:
        examples: how many were predicted.
        columns: of each of the set's metrics what it is made of; see `TaskType.columns`.
        majority: by metric, the score of one label for every example.
        constant: the only answer that was predicted; empty if there are several.
    """

    examples: int
    columns: Mapping[str, tuple[Values, ...]]
    majority: Mapping[str, float] = field(default_factory=dict)
    constant: str = ""


def majority_scores(metrics: Sequence[str], row: TaskRow, split: Any, predictions: Predictions) -> dict[str, float]:
    """Return, by metric, the score of one label for every example, the best that there is.

    Args:
        metrics: of the task.
        row: of the task. Tasks without labels in common have no such score; a constant has no correlation.
        split: the set.
        predictions: of it; its examples are scored.
    """
    if row.kind is Kind.regression:
        return {name: 0.0 for name in metrics if name in Regression.metrics}
    if not row.labels or row.kind is Kind.word_labels:
        return {}
    count = len(predictions)
    constants = [
        Predictions(predictions.examples_E, np.full(count, float(n)), np.arange(count + 1))
        for n in range(len(row.labels))
    ]
    task_type = Classification(len(row.labels))
    return {
        name: max(score(name, *task_type.columns(name, split, one)) for one in constants)
        for name in metrics
        if name in task_type.metrics
    }


class ValidationReport:
    """The scores of one checkpoint.

    Args:
        args: the task's; `path` is the checkpoint, `results_path` the folder of the scores, if any.
        rows: of the tasks.
        about: what a checkpoint's options say of its model, beyond what all models' do.
    """

    def __init__(
        self, args: Namespace, rows: Mapping[str, TaskRow], about: Callable[[Mapping[str, Any]], dict[str, Any]]
    ) -> None:
        self._args, self._rows, self._about = args, rows, about
        self._subsets: list[str] = []

    def begin(self, subset: str) -> None:
        """See, before anything is computed, that the scores of a subset can be written.

        Raises:
            UserError: the folder holds scores of something else, or cannot be written to.
        """
        self._subsets.append(subset)
        folder = self._folder()
        if folder is None:
            return
        if (folder / JSON_FILE).exists():
            before = _settings_of(folder / JSON_FILE)
            if not _is_same_evaluation(before, self._args.path, subset):
                of = f"{before.get('checkpoint')} on {before.get('subset')}" if before else "something else"
                raise UserError(
                    f"`{folder}` must be a folder without other scores, but has those of {of}; "
                    "give another folder, or remove them."
                )
        check_writable(folder)

    def end(self, found: Mapping[str, FoundSet]) -> None:
        """Print the scores of the subset, and write them."""
        scores = scores_of_tasks(self._records(found), self._settings())
        published = published_row(scores)
        console = Console()
        console.print(score_table(scores, published).on_screen())
        for note in notes(scores, published):
            console.print(note, highlight=False, markup=False)
        folder = self._folder()
        if folder is not None:
            made_by = {"checkpoint_sha256": checksum.identity(self._args.path), **provenance()}
            write_scores(folder, replace(scores, settings={**scores.settings, **made_by}), published)
            console.print(str(folder / JSON_FILE), soft_wrap=True, highlight=False, markup=False)

    def _folder(self) -> Path | None:
        """Where the subset's scores go; of several those of the first into the folder itself."""
        if not self._args.results_path:
            return None
        folder = Path(self._args.results_path)
        return folder if len(self._subsets) == 1 else folder / self._subsets[-1]

    def _settings(self) -> dict[str, Any]:
        """What the scores are of."""
        args = self._args
        place = {"checkpoint": args.path, "data": args.data, "subset": self._subsets[-1]}
        state = peek(args.path) or {}
        cfg = state["cfg"]
        last: Mapping[str, Any] = (state.get("optimizer_history") or [{}])[-1]
        return {
            **place,
            "model": cfg["model"]["_name"],
            "finetune_from_model": cfg["checkpoint"]["finetune_from_model"],
            "seed": cfg["common"]["seed"],
            "updates": last.get("num_updates"),
            **self._about(cfg),
        }

    def _records(self, found: Mapping[str, FoundSet]) -> dict[str, dict[str, Any]]:
        """Of the tasks that have some, in the table's order, what the file of scores has."""
        records = {}
        for task, row in self._rows.items():
            sets = {key: self._set_record(task, key, one) for key, one in found.items() if _task_of(key) == task}
            if sets:
                of = {"title": row.title, "metric": row.metric, "small": row.small, "group": row.group}
                records[task] = {**of, "sets": sets}
        return records

    def _set_record(self, task: str, key: str, found: FoundSet) -> dict[str, Any]:
        row = self._rows[task]
        also = {name: (score(name, *made), standard_error(name, *made)) for name, made in found.columns.items()}
        files = source_files(Path(self._args.data), row, key.replace(task, self._subsets[-1], 1))
        own, error = also.pop(row.metric)
        return {"examples": found.examples, "score": own, "standard_error": error, "data_sha256": _digest(files),
                "also": also, "majority": found.majority, "constant": found.constant}  # fmt: skip


def _task_of(key: str) -> str:
    return key.partition("/")[0]


def _digest(files: Sequence[Path]) -> str:
    """A SHA-256 of the files' content, one after the other: it tells other data, wherever they lie."""
    found = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            found.update(hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


def _settings_of(path: Path) -> dict[str, Any] | None:
    """The settings of the scores in a folder; None if it has a file of something else under their name."""
    try:
        return dict(scores_in(read_json(path)).settings)
    except ValueError:
        return None


def _is_same_evaluation(before: Mapping[str, Any] | None, checkpoint: str, subset: str) -> bool:
    if before is None or before.get("subset") != subset:
        return False
    return os.path.realpath(str(before.get("checkpoint"))) == os.path.realpath(checkpoint)
