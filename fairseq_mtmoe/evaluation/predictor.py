"""A model of `--task glue` or `text_to_text` that is loaded once and predicts the sets of a data directory.

Labels are not looked at, where there are some.
The steps are those of fairseq-validate, with the same batches: a file of predictions has the score that it gives.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import tasks, utils
from fairseq.data import FairseqDataset
from torch import Tensor

from fairseq_mtmoe.data.mixtures.dataset import Collate, EvaluationMixture
from fairseq_mtmoe.data.nlu.answers import submission_of, written
from fairseq_mtmoe.data.nlu.cache import tokenized_split
from fairseq_mtmoe.data.nlu.dataset import TaskDataset
from fairseq_mtmoe.data.nlu.reading import is_there
from fairseq_mtmoe.data.nlu.table import Submission, TaskRow
from fairseq_mtmoe.data.nlu.text_split import TextDataset, label_texts, text_split
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.evaluation import stored
from fairseq_mtmoe.task_types import Predictions, flattened, task_type_of
from fairseq_mtmoe.task_types.task_type import Scored, only_answer
from fairseq_mtmoe.task_types.text import TextTaskType

logger = logging.getLogger(__name__)

BATCH_MULTIPLE = 8  # fairseq-validate's default for --required-batch-size-multiple


@dataclass(frozen=True)
class Inference:
    """How to compute, in fairseq's words.

    Raises:
        UserError: there are two types of half precision at once.
    """

    batch_size: int | None = None
    max_tokens: int | None = None
    fp16: bool = False
    bf16: bool = False
    cpu: bool = False

    def __post_init__(self) -> None:
        if self.fp16 and self.bf16:
            raise_invalid("--bf16", "off with --fp16", self.bf16)


@dataclass(frozen=True)
class PredictedSet:
    """A set of the data directory that the model predicts.

    Attributes:
        key: its name: a task's own, or with a further set's, as in `mnli/mismatched`.
        name, row, split: its task, its task's row, and the split or set as the row has it.
        head: the task whose head predicts it.
    """

    key: str
    name: str
    row: TaskRow
    split: str
    head: str

    @property
    def submission(self) -> Submission:
        """How its predictions are written."""
        return submission_of(self.name, self.row, self.split)


@dataclass(frozen=True)
class Choice:
    """What a model predicts of a data directory.

    Attributes:
        sets: the sets, in the order of the table.
        headless, absent: tasks whose data no head predicts, and sets of the model's tasks that are not there.
    """

    sets: list[PredictedSet]
    headless: list[str]
    absent: list[str]


def choose_sets(
    root: Path,
    rows: Mapping[str, TaskRow],
    heads: Mapping[str, object],
    subset: str,
    shape_of: Callable[[TaskRow], object],
) -> Choice:
    """Return the sets that are there and that a head predicts: the task's own, or the one that its row names.

    `heads` are the shapes of what the model predicts, by their tasks; `shape_of` says what a task's would be.

    Raises:
        UserError: there is no such set, or two have one file.
    """
    choice = Choice([], [], [])
    for name, row in rows.items():
        keys = {split: split.replace(subset, name, 1) for split in row.sets(subset)}
        found = [split for split in keys if is_there(root, row, split)]
        head = next((task for task in (name, row.head) if task in heads and heads[task] == shape_of(row)), None)
        if head is not None:
            choice.sets.extend(PredictedSet(keys[split], name, row, split, head) for split in found)
        elif found:
            choice.headless.append(name)
        if head == name:
            choice.absent.extend(keys[split] for split in keys if split not in found)
    if not choice.sets:
        raise UserError(
            f"`{root}` must have the {subset} data of a task of the model ({', '.join(heads)}), but has none."
        )
    files: dict[str, str] = {}
    for chosen in choice.sets:
        file = chosen.submission.file
        if (other := files.setdefault(file, chosen.key)) != chosen.key:
            raise_invalid(f"{chosen.key}: submissions: file", f"another one than that of {other}", file)
    return choice


class Predictor:
    """A model in the place and precision of `inference`, and the task that it was trained with, on some data.

    `task_table` replaces the run's tables of tasks.

    Raises:
        UserError: the checkpoint is missing, damaged, or of another task, or a table is wrong.
    """

    def __init__(self, data: str, checkpoint: str, inference: Inference, task_table: str | None = None) -> None:
        self.inference = inference
        self.use_cuda = torch.cuda.is_available() and not inference.cpu
        self.checkpoint, self._root = checkpoint, Path(data)
        state = stored.read(checkpoint)
        settings = stored.task_settings(state, checkpoint, tuple(_BY_TASK), "language understanding")
        stored.change(settings, data=data, **({} if task_table is None else {"task_table": task_table}))
        self._task: Any = tasks.setup_task(settings)
        self._task.load_state_dict(state["task_state"])
        model = stored.build_model(self._task, state, checkpoint).eval()
        self.model = stored.placed(model, inference.fp16, inference.bf16, self.use_cuda)
        self._sets: _Sets = _BY_TASK[stored.setting(settings, "_name")](self._task, self.model)

    @property
    def table(self) -> Mapping[str, TaskRow]:
        """All tasks that are known, by their names."""
        rows: Mapping[str, TaskRow] = self._task.table
        return rows

    def choose(self, subset: str) -> Choice:
        """What the model predicts of a subset; see `choose_sets`."""
        return choose_sets(self._root, self.table, self._sets.shapes, subset, self._sets.shape_of)

    def read(self, sets: Sequence[PredictedSet]) -> list[Any]:
        """The examples of sets."""
        tokens = {"cache": self._task.token_cache, "labelled": False}
        return [
            self._sets.read(self._root, one.name, one.row, one.split, self._task.tokenizer_of(one.row), **tokens)
            for one in sets
        ]

    @torch.no_grad()
    def predict(self, chosen: PredictedSet, examples: Any, advance: Callable[[int], None] = lambda count: None) -> str:
        """Return the file of predictions of a set; `advance` is told the number of examples of every finished batch.

        Raises:
            UserError: the model gives no finite numbers.
        """
        parts: list[tuple[Tensor, Tensor]] = []
        for sample in self.batches(chosen, examples):
            predictions = self._sets.predictions(sample, chosen.row, chosen.head)
            if predictions is None:
                raise UserError(f"`{self.checkpoint}` must give finite numbers for {chosen.key}, but does not.")
            parts.append(flattened(sample["id"], predictions))
            advance(len(sample["id"]))
        ids, values = (torch.cat(of_batches).cpu().numpy() for of_batches in zip(*parts, strict=True))
        gathered = Predictions.gathered(ids, values.astype(np.float64))
        labels = chosen.submission.labels or chosen.row.labels
        texts = self._sets.scored(chosen.row).label_text(examples, gathered, labels)
        if only := only_answer(texts):
            logger.warning(f"{chosen.key}: every prediction is {only!r:.80}")
        return written(chosen.submission, examples.keys_E.tolist(), texts)

    def batches(self, chosen: PredictedSet, examples: Any) -> Iterator[dict[str, Any]]:
        """The batches of a set, as the model takes them."""
        task_id = self._task.id_of(chosen.head, "a task of the model")
        data, collate = self._sets.dataset(examples, chosen.head)
        batches = self._task.get_batch_iterator(
            EvaluationMixture([chosen.key], [data], [task_id], collate),
            max_tokens=self.inference.max_tokens,
            max_sentences=self.inference.batch_size,
            required_batch_size_multiple=BATCH_MULTIPLE,
        )
        for sample in batches.next_epoch_itr(shuffle=False):
            sample = utils.move_to_cuda(sample) if self.use_cuda else sample
            yield self._task.for_models(sample, [self.model])


class _Sets(ABC):
    """How the models of a task predict sets; `read` gets the tokens of one, from the cache or its file."""

    read: Callable[..., Any]

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
    def dataset(self, examples: Any, head: str) -> tuple[FairseqDataset, Collate]:
        """Examples as they stand in batches, and what makes batches that the task of a head predicts."""

    @abstractmethod
    def predictions(self, sample: dict[str, Any], row: TaskRow, head: str) -> Tensor | None:
        """What the model predicts of a batch, (E, …), filled up with NaN; None where its numbers are not finite."""

    @abstractmethod
    def scored(self, row: TaskRow) -> Scored:
        """What makes a file of a task's predictions."""


class _ByHeads(_Sets):
    """Of `--task glue`: each task of the run has a head, of which the size is compared."""

    read = staticmethod(tokenized_split)

    @property
    def shapes(self) -> Mapping[str, object]:
        return {task: head.size for task, head in self.model.heads.items()}

    def shape_of(self, row: TaskRow) -> object:
        return task_type_of(row).head

    def dataset(self, examples: Any, head: str) -> tuple[FairseqDataset, Collate]:
        return TaskDataset(examples), self.task.collate_of([head])

    def predictions(self, sample: dict[str, Any], row: TaskRow, head: str) -> Tensor | None:
        numbers = self.model(**sample["net_input"])[head]
        return task_type_of(row).predictions(numbers) if numbers.isfinite().all() else None

    def scored(self, row: TaskRow) -> Scored:
        return task_type_of(row)


class _ByWriting(_Sets):
    """Of `--task text_to_text`: the task of the run, and others that are asked and answered alike."""

    read = staticmethod(text_split)

    @property
    def shapes(self) -> Mapping[str, object]:
        return {self.task.name: self.shape_of(self.task.row)}

    def shape_of(self, row: TaskRow) -> object:
        """The kind of answer, and the texts of its labels; nothing of a task without a text form."""
        return (row.kind, tuple(label_texts(row))) if row.text_form is not None else None

    def dataset(self, examples: Any, head: str) -> tuple[FairseqDataset, Collate]:
        return TextDataset(examples), self.task.collate_of([])

    def predictions(self, sample: dict[str, Any], row: TaskRow, head: str) -> Tensor | None:
        """See `_Sets`. A search makes something of any numbers: it is the weights that are looked at."""
        is_finite = all(parameter.isfinite().all() for parameter in self.model.parameters())
        return self.task.write(self.model, sample) if is_finite else None

    def scored(self, row: TaskRow) -> Scored:
        return TextTaskType(row, self.task.pieces)


_BY_TASK: Mapping[str, Callable[[Any, Any], _Sets]] = {"glue": _ByHeads, "text_to_text": _ByWriting}
