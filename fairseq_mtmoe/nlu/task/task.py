"""Base of tasks whose data is in the task table.

It has splits, metrics of whole sets, averages and a report.
"""

import filecmp
import json
import logging
import math
import os
from abc import abstractmethod
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.logging import metrics
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.core.errors import UserError, raise_invalid
from fairseq_mtmoe.core.protocols import TaskDescription
from fairseq_mtmoe.multitask.mixtures.dataset import Collate, EvaluationMixture, check_fit
from fairseq_mtmoe.multitask.mixtures.training import TrainingMixture
from fairseq_mtmoe.multitask.run_log import is_first_process
from fairseq_mtmoe.multitask.task import Multitask
from fairseq_mtmoe.multitask.task_sampling import plan_of
from fairseq_mtmoe.multitask.validation import Group
from fairseq_mtmoe.nlu.data.loader import BenchmarkLoader
from fairseq_mtmoe.nlu.data.reading import TaskSet, expect_files, sets_of
from fairseq_mtmoe.nlu.data.table import TaskRow, load_tables
from fairseq_mtmoe.nlu.data.tokenizer_files import check_installed
from fairseq_mtmoe.nlu.task.config import BenchmarkConfig
from fairseq_mtmoe.nlu.task.metrics import check_metric, score
from fairseq_mtmoe.nlu.task.report import FoundSet, ValidationReport, majority_scores
from fairseq_mtmoe.nlu.types.task_type import Predictions, Scored, flattened, only_answer
from fairseq_mtmoe.report.score_files import in_groups

logger = logging.getLogger(__name__)

CACHE = "mtmoe-cache"
PREDICTED = "_predictions"  # end of the keys of a validation's predictions


class BenchmarkTask(Multitask):
    """Base class: its tasks are rows of the table, its groups Small and All.

    Subclasses call `set_up_rows`.

    Attributes:
        table, rows: all known rows, and the rows of this task.
        report: the report of a checkpoint's validation; None in training.
        pretrained: the backbone of a new model; None if a checkpoint's weights follow.
        begins_with_checkpoint: whether a new model also gets a checkpoint's weights.
        is_source: whether it trains adapters for later tasks (PEMT); None if unknown.
    """

    config: type[BenchmarkConfig]
    name_of_task: str  # as in `--task`
    named_by: str  # the option that names the tasks
    backbone_option: str  # the option that names the backbone's file
    backbone: str  # what that file contains, for error messages
    load_split: Callable[..., Any]  # returns the tokens of a set
    # Further arguments of `load_split` for a set to be scored.
    evaluation_arguments: Mapping[str, Any] = {}
    dataset_of: Callable[[Any], Any]  # makes a data set of the tokens
    is_source: bool | None = None

    def __init__(self, args: Namespace) -> None:
        super().__init__(args)
        self.args = args
        self.table = load_tables(
            [Path(path) for path in (args.task_table or "").split(",") if path]
        )
        self.pretrained: Any = None
        self.begins_with_checkpoint = False
        self._sets: dict[str, dict[str, Any]] = {}  # by evaluated split, its sets by name
        # By set: the last predictions, and their columns.
        self._found_sets: dict[str, tuple[Tensor, FoundSet]] = {}

    def set_up_rows(
        self, rows: Mapping[str, TaskRow], metrics_of: Callable[[TaskRow], Sequence[str]]
    ) -> None:
        """Set the task's rows; called by constructors (UserError: a wrong metric)."""
        self.rows = dict(rows)
        for name, row in rows.items():
            for metric in (row.metric, *row.also):
                check_metric(name, metric, metrics_of(row), len(row.labels))
        self.set_up_tasks(list(rows))
        # Training has no `--path`.
        self.report: ValidationReport | None = None
        if self.args.path:
            self.report = ValidationReport(self.args, self.rows, self.about_checkpoint)

    # ---- what a task supplies ----

    @abstractmethod
    def scored(self, row: TaskRow) -> Scored:
        """Return the scorer of a task of the table."""

    @abstractmethod
    def shape_of(self, row: TaskRow) -> object:
        """Return the size of a task's head: tasks with equal sizes can share one."""

    @abstractmethod
    def head_shapes(self, model: Any) -> Mapping[str, object]:
        """Return the shapes of the model's heads by the tasks that they were trained on."""

    @abstractmethod
    def predicted(self, model: Any, sample: dict[str, Any], row: TaskRow, head: str) -> Tensor:
        """Return a batch's predictions by a task's head, (E, …), padded with NaN.

        Raises `UserError` for a head that gives no numbers.
        """

    @abstractmethod
    def about_checkpoint(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """Return the report's additional fields on a checkpoint with these options."""

    @abstractmethod
    def load_backbone(self, path: str) -> Any:
        """Return the pretrained backbone in a file."""

    @abstractmethod
    def backbone_of(self, state: Mapping[str, Any]) -> Any:
        """Return a checkpoint's backbone: sizes without weights, which fairseq loads."""

    @abstractmethod
    def note_backbone(self, cfg: Any) -> None:
        """Store the backbone's sizes in `cfg`, and its tokenizer in the task's state."""

    @abstractmethod
    def tokenizer_of(self, row: TaskRow) -> Any:
        """Return the tokenizer of a task's texts."""

    @abstractmethod
    def token_ids(self, text: str) -> list[int]:
        """Return the token ids of a text, without an end token."""

    @abstractmethod
    def few_of(self, name: str, split: Any) -> Any:
        """Return the training examples that an option selects."""

    @abstractmethod
    def collate_of(self, tasks: Sequence[str]) -> Collate:
        """Return the collate function of sets of these tasks."""

    def dropout_draws(self, tasks: Sequence[str]) -> list[int]:
        """Return the number of outputs under dropout that each task's uncertainty needs."""
        return [0] * len(tasks)

    @abstractmethod
    def predictions(
        self, model: Any, sample: dict[str, Any], logging_output: dict[str, Any]
    ) -> Tensor:
        """Return the predictions of a validation batch, (E, …), padded with NaN."""

    # ---- options and model ----

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the task's options; called by fairseq."""
        gen_parser_from_dataclass(parser, cls.config())

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> Self:
        """Build the task; called by fairseq (UserError: no data, no scikit-learn)."""
        check_installed("scikit-learn", "sklearn.metrics")
        values: Any = (
            OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else vars(cfg)
        )
        # This is the default without sampling options.
        args = Namespace(**{"sampling_temperature": 1.0, **values})
        if not args.data or not Path(args.data).is_dir():
            raise_invalid("data", "an existing directory", args.data)
        return cls(args)

    def described(self) -> TaskDescription:
        """Return the description of the task's single row (UserError: several rows)."""
        if len(self.rows) != 1:
            raise_invalid(
                self.named_by,
                "a single task with PEMT",
                ",".join(self.rows),
            )
        ((name, row),) = self.rows.items()
        text = row.prompt or row.description
        return TaskDescription(name, text, self.token_ids(text), self.is_source)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model; a new one begins with the pretrained backbone."""
        if not from_checkpoint:
            self.pretrained = self._found_backbone()
            self.begins_with_checkpoint = self.checkpoint_to_go_on_from() is not None
            self.note_backbone(cfg)
        model = super().build_model(cfg, from_checkpoint)
        self.pretrained = None
        return model

    def _given(self, options: Mapping[str, Any]) -> Any:
        return options.get(self.backbone_option.removeprefix("--").replace("-", "_"))

    def _found_backbone(self) -> Any:
        """Return a new model's backbone, of a file or of the run's first checkpoint."""
        if backbone_path := self._given(vars(self.args)):
            return self.load_backbone(backbone_path)
        path = self.checkpoint_to_go_on_from()
        if path is None:
            raise UserError(
                f"`{self.backbone_option}` must name a file of `mtmoe import-hf`, or "
                f"`--finetune-from-model` an existing checkpoint of `--task {self.name_of_task}`."
            )
        state: dict[str, Any] = file_io.load(path)
        try:
            return self.backbone_of(state)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise UserError(
                f"`{path}` is not a checkpoint of `--task {self.name_of_task}`: it has no "
                f"{self.backbone}."
            ) from error

    def take_up(self, path: str, state: Mapping[str, Any], goes_on: bool) -> None:
        """See `TrainingTask`; weights and moments have rows in the order of the tasks."""
        if not goes_on:
            return
        try:
            before = self.about_checkpoint(state["cfg"])["trained_tasks"]
            options = state["cfg"]["task"]
        except (KeyError, TypeError, ValueError, AttributeError):
            return  # another kind of model: loading its parameters fails with a sentence
        if before != list(self.rows):
            self.refuse_other_tasks(self.named_by, path, before, list(self.rows))
        old = self._given(options)
        new = self._given(vars(self.args))
        if not all(isinstance(file, str) and os.path.isfile(file) for file in (old, new)):
            return
        if not os.path.samefile(old, new) and not filecmp.cmp(old, new, shallow=False):
            raise UserError(
                f"`{self.backbone_option}` must be `{old}`, as when the run of `{path}` began, or "
                f"be left out, but is `{new}` instead, a different file; use another `--save-dir` "
                f"for a new run with it, or `--finetune-from-model {path}` for a new run with the "
                "checkpoint's weights."
            )

    # ---- data ----

    @property
    def token_cache(self) -> Path:
        """The folder of tokenized data."""
        return Path(self.args.token_cache or Path(self.args.data) / CACHE)

    def load_dataset(
        self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any
    ) -> None:
        """Load a split of all tasks, for training or for evaluation."""
        # A report scores also the training subset.
        is_training = split == self.args.train_subset and self.report is None
        missing = [name for name, row in self.rows.items() if not row.sets(split)]
        if missing and (is_training or len(missing) == len(self.rows)):
            has = ", ".join(self.rows[missing[0]].splits)
            raise UserError(f"`{missing[0]}` has no split `{split}` in the task table, only {has}.")
        if self.report is not None and is_first_process():
            self.report.begin(split)
        task_sets = sets_of(Path(self.args.data), self.rows, split)
        expect_files(task_sets)

        def read(task_set: TaskSet) -> Any:
            more = {} if is_training else self.evaluation_arguments
            tokenizer = self.tokenizer_of(task_set.row)
            return type(self).load_split(task_set, tokenizer, self.token_cache, **more)

        loader: BenchmarkLoader[Any] = BenchmarkLoader(
            split, task_sets, read, type(self).dataset_of
        )
        ids = [self.id_of(task, f"a task of {self.named_by}") for task in loader.tasks]
        collate = self.collate_of(loader.tasks)
        draws = self.dropout_draws(loader.tasks)
        if is_training:
            loader.keep(self.few_of)
            plan = plan_of(self.args, loader.keys, loader.shard_sizes)
            self.datasets[split] = TrainingMixture(
                loader.load, plan, ids, collate, epoch, self.num_updates, draws
            )
            return
        self.datasets[split] = EvaluationMixture(loader.keys, loader.load(), ids, collate)
        self._sets.pop(split, None)  # the split loaded last must be the last key
        self._sets[split] = dict(zip(loader.keys, loader.sets, strict=True))
        if missing:
            logger.warning(f"[{split}] the task table lacks this split of {', '.join(missing)}")

    def max_positions(self) -> None:
        """Return None: no example is too long, because the tokenizer truncates."""

    # ---- validation ----

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Begin an epoch (UserError: no batch size for validation)."""
        for dataset in self.datasets.values():
            if isinstance(dataset, EvaluationMixture):
                longest = int(dataset.num_tokens_vec(np.arange(len(dataset))).max(initial=0))
                check_fit(longest, self.args.max_tokens_valid)
        super().begin_epoch(epoch, model)

    @property
    def evaluated(self) -> Mapping[str, Any]:
        """The sets of the split that was iterated last, else of the one loaded last."""
        return self._sets.get(self._evaluated_split) or next(reversed(self._sets.values()), {})

    @property
    def validated_tasks(self) -> list[str]:
        """Names of the evaluated sets."""
        return list(self.evaluated)

    def groups(self) -> list[Group]:
        """Return tasks with several sets, small tasks, the table's groups, and all tasks."""
        num_sets = Counter(key.partition("/")[0] for key in self.evaluated)
        members = {f"{name}_mean": [name] for name, count in num_sets.items() if count > 1}
        if small := [name for name in num_sets if self.rows[name].small]:
            members["small"] = small
        members |= in_groups({name: self.rows[name].group for name in num_sets})
        members["all"] = list(num_sets)
        return [Group(name, tuple(tasks)) for name, tasks in members.items()]

    def valid_step(self, sample: dict[str, Any], model: Any, criterion: Any, **kwargs: Any) -> Any:
        """Run a validation step; add predictions and their examples to the logging output."""
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion, **kwargs)
        if sample:
            pairs = flattened(sample["id"], self.predictions(model, sample, logging_output))
            logging_output = {**logging_output, f"_{sample['task']}{PREDICTED}": pairs}
        return loss, sample_size, logging_output

    @staticmethod
    def logging_outputs_can_be_summed(criterion: Any) -> bool:
        """Return whether this is training; a validation gathers its predictions."""
        return bool(criterion.training and criterion.logging_outputs_can_be_summed())

    def log_figures(self, logging_outputs: list[dict[str, Any]]) -> None:
        """Log each set's metrics and the means of groups, if there are predictions."""
        if not any(name.endswith(PREDICTED) for log in logging_outputs for name in log):
            return
        for key in self.evaluated:
            pairs = _gathered(logging_outputs, key)
            if pairs is not None:
                metrics.log_concat_tensor(f"_{key}{PREDICTED}", pairs)
            for metric in self.metrics_of(key):
                metrics.log_derived(
                    f"{key}_{metric}", partial(self._set_score, key=key, metric=metric), 1000
                )
        for group in self.groups():
            metrics.log_derived(group.name, partial(self._group_score, group=group), 1001)

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Reduce as fairseq does; rank 0 prints and writes the scores of a checkpoint."""
        super().reduce_metrics(logging_outputs, criterion)
        if self.report is not None and is_first_process():
            found_sets = {}
            for key in self.evaluated:
                pairs = _gathered(logging_outputs, key)
                if pairs is not None:
                    found_sets[key] = self._reported(key, pairs)
            self.report.end(found_sets)

    def metrics_of(self, key: str) -> list[str]:
        """Return the metrics of a set; averages use the first one."""
        row = self._row_of(key)
        return [row.metric, *row.also]

    def _row_of(self, key: str) -> TaskRow:
        """Return the row of a set such as `mnli/mismatched`."""
        return self.rows[key.partition("/")[0]]

    def _reported(self, key: str, pairs: Tensor) -> FoundSet:
        """Return a set's columns, with the scores of constant labels."""
        predictions = Predictions.gathered(pairs)
        split = self.evaluated[key]
        row = self._row_of(key)
        return replace(
            self._found(key, pairs),
            majority=majority_scores(self.metrics_of(key), row, split, predictions),
            constant=only_answer(self.scored(row).label_text(split, predictions, row.labels)),
        )

    def _found(self, key: str, pairs: Tensor) -> FoundSet:
        # Several figures read the same predictions.
        if key in self._found_sets and self._found_sets[key][0] is pairs:
            return self._found_sets[key][1]
        scored = self.scored(self._row_of(key))
        predictions = Predictions.gathered(pairs)
        columns = {}
        for name in self.metrics_of(key):
            columns[name] = scored.columns(name, self.evaluated[key], predictions)
        found_set = FoundSet(len(columns[self.metrics_of(key)[0]][0]), columns)
        self._found_sets[key] = (pairs, found_set)
        return found_set

    def _set_scores(self, meters: Mapping[str, Any], key: str) -> dict[str, float]:
        """Return the metrics of a set, rounded; NaN without predictions."""
        scores = dict.fromkeys(self.metrics_of(key), math.nan)
        meter = meters.get(f"_{key}{PREDICTED}")
        if meter is not None:
            for name, columns in self._found(key, meter.tensor).columns.items():
                scores[name] = round(score(name, *columns), 2)
        return scores

    def _set_score(self, meters: Mapping[str, Any], key: str, metric: str) -> float:
        return self._set_scores(meters, key)[metric]

    def _group_score(self, meters: Mapping[str, Any], group: Group) -> float:
        """Return the mean over tasks; a task with several sets counts once."""
        means = []
        for task in group.tasks:
            scores = []
            for key in self.evaluated:
                if key.partition("/")[0] == task:
                    scores.append(self._set_score(meters, key, self.rows[task].metric))
            means.append(np.mean(scores))
        return round(float(np.mean(means)), 2)

    def figures(self, meters: Mapping[str, Any], name: str | None) -> dict[str, float]:
        """Return a set's loss and metrics, a group's mean, or (None) the loss of all."""
        if name is None:
            return {"loss": float(meters["loss"].avg)}
        if name in self.evaluated:
            return {"loss": float(meters[f"{name}_loss"].avg), **self._set_scores(meters, name)}
        group = next(group for group in self.groups() if group.name == name)
        return {"mean": self._group_score(meters, group)}


def _gathered(logging_outputs: Sequence[Mapping[str, Any]], key: str) -> Tensor | None:
    """Return the predictions of a set from all batches and ranks, `flattened`, if any."""
    name = f"_{key}{PREDICTED}"
    parts = [log[name].cpu() for log in logging_outputs if name in log]
    return torch.cat(parts) if parts else None
