"""How models of each task predict the sets of a data directory: by a head for each task, or by writing texts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fairseq.data import FairseqDataset
from torch import Tensor

from fairseq_mtmoe.data.mixtures.dataset import Collate
from fairseq_mtmoe.data.nlu.cache import tokenized_split
from fairseq_mtmoe.data.nlu.dataset import TaskCollate, TaskDataset
from fairseq_mtmoe.data.nlu.table import TaskRow
from fairseq_mtmoe.data.nlu.text_split import TextCollate, TextDataset, label_texts, text_split
from fairseq_mtmoe.task_types import task_type_of
from fairseq_mtmoe.task_types.task_type import Scored
from fairseq_mtmoe.task_types.text import TextTaskType


class NotFiniteError(Exception):
    """A model's numbers are none."""


class SetPredictions(ABC):
    """What depends on the task that a model was trained with.

    Args:
        task: as it was trained with, on some data.
        model: of it, in evaluation mode.
    """

    def __init__(self, task: Any, model: Any) -> None:
        self.task, self.model = task, model

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, object]:
        """What the model predicts, by the names of the tasks that it was trained on, as `shape_of` has it."""

    @abstractmethod
    def shape_of(self, row: TaskRow) -> object:
        """Equal where one task's predictions can be another's."""

    @abstractmethod
    def read(self, root: Path, name: str, row: TaskRow, split: str) -> Any:
        """The examples of a task's set, without labels."""

    @abstractmethod
    def dataset(self, examples: Any) -> FairseqDataset:
        """These as they stand in batches."""

    @abstractmethod
    def collate(self, head: str) -> Collate:
        """What makes batches that the task of a head predicts."""

    @abstractmethod
    def predictions(self, sample: dict[str, Any], row: TaskRow, head: str) -> Tensor:
        """What the model predicts of a batch of a task's examples, (E, …), filled up with NaN.

        Raises:
            NotFiniteError: it gives no finite numbers.
        """

    @abstractmethod
    def scored(self, row: TaskRow) -> Scored:
        """What makes a file of a task's predictions."""


class ByHeads(SetPredictions):
    """Those of `--task glue`: each task of the run has a head."""

    @property
    def shapes(self) -> Mapping[str, object]:
        """Sizes of the heads."""
        return {task: head.size for task, head in self.model.heads.items()}

    def shape_of(self, row: TaskRow) -> object:
        """The size of the head that a task would have."""
        return task_type_of(row).head

    def read(self, root: Path, name: str, row: TaskRow, split: str) -> Any:
        """See `SetPredictions`."""
        return tokenized_split(
            root, name, row, split, self.task.tokenizer_of(row), self.task.token_cache, labelled=False
        )

    def dataset(self, examples: Any) -> FairseqDataset:
        """See `SetPredictions`."""
        return TaskDataset(examples)

    def collate(self, head: str) -> Collate:
        """See `SetPredictions`."""
        return TaskCollate(self.task.tokenizer.padding, [head])

    def predictions(self, sample: dict[str, Any], row: TaskRow, head: str) -> Tensor:
        """See `SetPredictions`."""
        numbers = self.model(**sample["net_input"])[head]
        if not numbers.isfinite().all():
            raise NotFiniteError
        return task_type_of(row).predictions(numbers)

    def scored(self, row: TaskRow) -> Scored:
        """See `SetPredictions`."""
        return task_type_of(row)


class ByWriting(SetPredictions):
    """Those of `--task text_to_text`: the task of the run, and others that are asked and answered alike."""

    @property
    def shapes(self) -> Mapping[str, object]:
        """What the trained task's answers are."""
        return {self.task.name: self.shape_of(self.task.row)}

    def shape_of(self, row: TaskRow) -> object:
        """The kind of answer, and the texts of its labels; nothing of a task without a text form."""
        return (row.kind, tuple(label_texts(row))) if row.text_form is not None else None

    def read(self, root: Path, name: str, row: TaskRow, split: str) -> Any:
        """See `SetPredictions`."""
        return text_split(root, name, row, split, self.task.tokenizer_of(row), self.task.token_cache, labelled=False)

    def dataset(self, examples: Any) -> FairseqDataset:
        """See `SetPredictions`."""
        return TextDataset(examples)

    def collate(self, head: str) -> Collate:
        """See `SetPredictions`."""
        collate: TextCollate = self.task.collate
        return collate

    def predictions(self, sample: dict[str, Any], row: TaskRow, head: str) -> Tensor:
        """See `SetPredictions`. A search makes something of any numbers: it is the weights that are looked at."""
        if not all(parameter.isfinite().all() for parameter in self.model.parameters()):
            raise NotFiniteError
        tokens: Tensor = self.task.write(self.model, sample)
        return tokens

    def scored(self, row: TaskRow) -> Scored:
        """See `SetPredictions`."""
        return TextTaskType(row, self.task.pieces)


BY_TASK: Mapping[str, Callable[[Any, Any], SetPredictions]] = {"glue": ByHeads, "text_to_text": ByWriting}
