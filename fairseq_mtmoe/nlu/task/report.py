"""The report of `fairseq-validate`: a table of scores.

With `--results-path` there are also two files.
"""

import hashlib
import math
import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fairseq_mtmoe.checkpoints import checksum
from fairseq_mtmoe.checkpoints.file_io import peek
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.files import check_writable, read_json
from fairseq_mtmoe.nlu.data.reading import TaskSet, source_files
from fairseq_mtmoe.nlu.data.table import Kind, TaskRow
from fairseq_mtmoe.nlu.task.metrics import Values, score, standard_error
from fairseq_mtmoe.nlu.types.task_type import Classification, Predictions, Regression
from fairseq_mtmoe.report.run_log import provenance
from fairseq_mtmoe.report.score_files import JSON_FILE, scores_in, scores_of_tasks
from fairseq_mtmoe.report.score_tables import notes, score_table, write_scores

OF_ROW = ("title", "metric", "small", "group")  # fields of a row in the record of its scores


@dataclass(frozen=True)
class FoundSet:
    """The predictions of one data set, ready to be scored."""

    examples: int  # number of predicted examples
    columns: Mapping[str, tuple[Values, ...]]  # each metric's arguments; see `TaskType.columns`
    # By metric, this is the best score of a constant label.
    majority: Mapping[str, float] = field(default_factory=dict)
    constant: str = ""  # the answer, if all examples got the same one


def majority_scores(
    metrics: Sequence[str], row: TaskRow, split: Any, predictions: Predictions
) -> dict[str, float]:
    """Return, by metric, the best score of one constant label.

    Empty for tasks whose examples have no labels in common.
    """
    if row.kind is Kind.regression:
        return {name: 0.0 for name in metrics if name in Regression.metrics}
    if not row.labels or row.kind is Kind.word_labels:
        return {}
    task_type = Classification(len(row.labels))
    highest: dict[str, float] = {}
    for n in range(len(row.labels)):
        values_E = np.full(len(predictions), float(n))
        constant = replace(predictions, values_V=values_E, starts_E=np.arange(len(values_E) + 1))
        for name in metrics:
            if name in task_type.metrics:
                constant_score = score(name, *task_type.columns(name, split, constant))
                highest[name] = max(highest.get(name, -math.inf), constant_score)
    return highest


class ValidationReport:
    """The scores of the checkpoint `args.path`; `about` describes its model."""

    def __init__(
        self,
        args: Namespace,
        rows: Mapping[str, TaskRow],
        about: Callable[[Mapping[str, Any]], dict[str, Any]],
    ) -> None:
        self._args = args
        self._rows = rows
        self._about = about
        self._subsets: list[str] = []

    def begin(self, subset: str) -> None:
        """Check the folder before computing (UserError: other scores, not writable)."""
        self._subsets.append(subset)
        folder = self._folder()
        if folder is None:
            return
        file = folder / JSON_FILE
        if file.exists():
            try:
                before = dict(scores_in(read_json(file)).settings)
            except ValueError:  # a file of this name with other content
                before = {}
            checkpoint = str(before.get("checkpoint"))
            if before.get("subset") != subset or os.path.realpath(checkpoint) != os.path.realpath(
                self._args.path
            ):
                described = (
                    f"{checkpoint} on {before.get('subset')}" if before else "something else"
                )
                raise UserError(
                    f"`{folder}` contains scores of {described}: give another folder, or remove "
                    "them."
                )
        check_writable(folder)

    def end(self, found_sets: Mapping[str, FoundSet]) -> None:
        """Print the table of a subset's scores (UserError: one is no number).

        With `--results-path` also write it.
        """
        records: dict[str, dict[str, Any]] = {}
        lacking = []
        for key, found_set in found_sets.items():
            task = key.partition("/")[0]
            row = self._rows[task]
            record = {field: getattr(row, field) for field in OF_ROW}
            sets = records.setdefault(task, {**record, "sets": {}})["sets"]
            sets[key] = self._set_record(row, task, key, found_set)
            if math.isnan(sets[key]["score"]):
                lacking.append(key)
        scores = scores_of_tasks(records, self._settings())
        console = Console()
        console.print(score_table(scores).on_screen())
        for note in notes(scores):
            console.print(note, highlight=False, markup=False)
        folder = self._folder()
        if folder is not None and lacking:
            raise UserError(f"`{self._args.path}` has no score of the set {lacking[0]}.")
        if folder is not None:
            made_by = {"checkpoint_sha256": checksum.identity(self._args.path), **provenance()}
            write_scores(folder, replace(scores, settings={**scores.settings, **made_by}))
            console.print(str(folder / JSON_FILE), soft_wrap=True, highlight=False, markup=False)

    def _set_record(self, row: TaskRow, task: str, key: str, found_set: FoundSet) -> dict[str, Any]:
        also = {}
        for name, columns in found_set.columns.items():
            also[name] = (score(name, *columns), standard_error(name, *columns))
        digest = hashlib.sha256()  # identifies the data by content, not by path
        split = key.replace(task, self._subsets[-1], 1)
        for path in source_files(TaskSet(Path(self._args.data), task, row, split)):
            with open(path, "rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        set_score, error = also.pop(row.metric)
        return {
            "examples": found_set.examples,
            "score": set_score,
            "standard_error": error,
            "data_sha256": digest.hexdigest(),
            "also": also,
            "majority": found_set.majority,
            "constant": found_set.constant,
        }

    def _folder(self) -> Path | None:
        """Return the subset's folder: the folder itself for the first, else a subfolder."""
        if not self._args.results_path:
            return None
        folder = Path(self._args.results_path)
        return folder if len(self._subsets) == 1 else folder / self._subsets[-1]

    def _settings(self) -> dict[str, Any]:
        args = self._args
        state = peek(self._args.path) or {}
        cfg = state["cfg"]
        last: Mapping[str, Any] = (state.get("optimizer_history") or [{}])[-1]
        return {
            "checkpoint": args.path,
            "data": args.data,
            "subset": self._subsets[-1],
            "model": cfg["model"]["_name"],
            "finetune_from_model": cfg["checkpoint"]["finetune_from_model"],
            "seed": cfg["common"]["seed"],
            "updates": last.get("num_updates"),
            **self._about(cfg),
        }
