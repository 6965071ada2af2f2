"""What every task does whose data is of the table of tasks: splits, metrics over whole sets, averages, a report."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.logging import metrics
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from fairseq_mtmoe.analysis.score_files import in_groups
from fairseq_mtmoe.data.mixtures.dataset import Collate, EvaluationMixture
from fairseq_mtmoe.data.mixtures.training import TrainingMixture
from fairseq_mtmoe.data.nlu.loader import BenchmarkLoader
from fairseq_mtmoe.data.nlu.table import TaskRow, load_tables
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.task_types import Predictions, flattened
from fairseq_mtmoe.task_types.task_type import Scored, only_answer
from fairseq_mtmoe.tasks._benchmark.config import BenchmarkConfig
from fairseq_mtmoe.tasks._benchmark.metrics import check_installed, check_metric, score
from fairseq_mtmoe.tasks._benchmark.report import FoundSet, ValidationReport, majority_scores
from fairseq_mtmoe.tasks._multitask.groups import Group
from fairseq_mtmoe.tasks._multitask.initial_checkpoint import expect_same_backbone, refuse_other_tasks
from fairseq_mtmoe.tasks._multitask.run_log import is_first_process
from fairseq_mtmoe.tasks._multitask.sampling import plan_of
from fairseq_mtmoe.tasks._multitask.task import Multitask

logger = logging.getLogger(__name__)

CACHE = "mtmoe-cache"
OF_ALL = ("loss", "small", "all")  # what a validation calls figures that are of no single task
GATHERED = ("examples", "predictions")  # of a validation: predicted values (V,), and the example that each is of


class BenchmarkTask(Multitask):
    """To be subclassed; its tasks are rows of the table, its groups Small and All.

    A class supplies `config`, its options, and calls `set_up_rows` and `mix`.

    Attributes:
        table: the rows that are known.
        rows: those of this task.
        report: of a checkpoint's validation; None in training.
    """

    config: type[BenchmarkConfig]
    named_by: str  # the option that names the tasks
    backbone_option: str  # and the one that names the file of what a new model begins with

    def __init__(self, args: Namespace) -> None:
        super().__init__(args)
        self.args = args
        tables = [Path(path) for path in (args.task_table or "").split(",") if path]
        self.table = load_tables(tables)
        self._sets: dict[str, dict[str, Any]] = {}  # of each split that is evaluated, by their names
        self._found_sets: dict[str, tuple[Tensor, FoundSet]] = {}  # what was found of the last predictions

    def set_up_rows(self, rows: Mapping[str, TaskRow], metrics: Mapping[str, Sequence[str]]) -> None:
        """To be called when the task is made.

        Raises:
            UserError: a row has another one, or a name that is not to be told from others in a validation.
        """
        self.rows = dict(rows)
        for name, row in rows.items():
            _check_names(name, row)
            for metric in (row.metric, *row.also):
                check_metric(name, metric, metrics[name], len(row.labels))
        args = self.args
        self.set_up_tasks(list(rows), args.save_dir, args.train_subset, args.update_freq)
        # in training there is no such path
        self.report = ValidationReport(args, self.rows, self.about_checkpoint) if args.path else None

    @abstractmethod
    def scored(self, name: str) -> Scored:
        """What a task's metrics are made of."""

    @abstractmethod
    def about_checkpoint(self, cfg: Mapping[str, Any]) -> dict[str, Any]:
        """What a validation's report says of a checkpoint with these options, beside what all have."""

    def expect_same_run(self, path: str, state: Mapping[str, Any]) -> None:
        """See `protocols.GoesOn`; the order of the tasks is that of rows in weights and moments."""
        try:
            before, options = self.about_checkpoint(state["cfg"])["trained_tasks"], state["cfg"]["task"]
        except (KeyError, TypeError, ValueError, AttributeError):
            return  # of another kind of model, which its parameters tell
        if before != list(self.rows):
            refuse_other_tasks(self.named_by, path, before, list(self.rows))
        expect_same_backbone(self.backbone_option, path, options, vars(self.args))

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the configuration to fairseq's command line."""
        gen_parser_from_dataclass(parser, cls.config())

    @classmethod
    def plain_options(cls, cfg: Any, **more: Any) -> Namespace:
        """The options of `setup_task`'s configuration, which must name a folder of data.

        Raises:
            UserError: there is no such folder, or a package is missing.
        """
        check_installed()
        values: Any = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else vars(cfg)
        args = Namespace(**{**more, **values})
        if not args.data or not Path(args.data).is_dir():
            raise_invalid("data", "an existing directory", args.data)
        return args

    # ---- data ----

    @property
    def token_cache(self) -> Path:
        """The folder of tokenized splits."""
        return Path(self.args.token_cache) if self.args.token_cache else Path(self.args.data) / CACHE

    def expect_split(self, split: str) -> None:
        """To be called before a split is loaded.

        Raises:
            UserError: no task has it, or one has no such training data, or the scores of a validation cannot be
                written.
        """
        lacking = [name for name, row in self.rows.items() if not row.sets(split)]
        if lacking and (split == self.args.train_subset or len(lacking) == len(self.rows)):
            has = ", ".join(self.rows[lacking[0]].splits)
            raise UserError(f"`{lacking[0]}` must have a split `{split}` in the table of tasks, but has {has} alone.")
        if self.report is not None and is_first_process():
            self.report.begin(split)

    def mix(
        self, loader: BenchmarkLoader[Any], collate: Collate, epoch: int, dropout_draws: Sequence[int] = ()
    ) -> None:
        """Make the loader's split the one of its name: training data, or what is evaluated from now on."""
        ids = [self.id_of(task, f"a task of {self.named_by}") for task in loader.tasks]
        if loader.split == self.args.train_subset:
            plan = plan_of(self.args, loader)
            mixture = TrainingMixture(loader, plan, ids, collate, epoch, self.num_updates, dropout_draws)
            self.datasets[loader.split] = mixture
        else:
            self.datasets[loader.split] = EvaluationMixture(loader.keys, loader.load(), ids, collate)
            self._sets.pop(loader.split, None)  # the one that was loaded last comes last
            self._sets[loader.split] = dict(zip(loader.keys, loader.sets, strict=True))
            lacking = [name for name, row in self.rows.items() if not row.sets(loader.split)]
            if lacking:
                logger.warning(f"[{loader.split}] the table of tasks has no such data of {', '.join(lacking)}")

    def max_positions(self) -> None:
        """None: no example is too long, because sequences were cut when they were tokenized."""

    # ---- validation ----

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Called by fairseq before it trains.

        Raises:
            UserError: the figure by which checkpoints are compared is none that a validation gives, or an example to
                validate on does not fit into a batch.
        """
        figures = [f"{key}_{name}" for key in self.evaluated for name in (*self.metrics_of(key), "loss")]
        known = ["loss", *(group.name for group in self.groups()), *figures]
        if self.evaluated and self.args.best_checkpoint_metric not in known:
            rule = f"one of {', '.join(known)}"
            raise_invalid("--best-checkpoint-metric", rule, self.args.best_checkpoint_metric)
        for dataset in self.datasets.values():
            if isinstance(dataset, EvaluationMixture):
                dataset.check_fit(np.arange(len(dataset)), self.args.max_tokens_valid)
        super().begin_epoch(epoch, model)

    @property
    def evaluated(self) -> Mapping[str, Any]:
        """The sets, by their names, of the split whose batches were asked for last; before, of the one loaded last."""
        return self._sets.get(self._evaluated_split) or next(reversed(self._sets.values()), {})

    @property
    def validated_tasks(self) -> list[str]:
        """The sets of the split that is evaluated."""
        return list(self.evaluated)

    def groups(self) -> list[Group]:
        """The tasks with several sets, the small tasks if there are some, those of groups if of several, and all."""
        tasks = {name: [key for key in self.evaluated if key.partition("/")[0] == name] for name in self.rows}
        several = [Group(f"{name}_mean", (name,)) for name, keys in tasks.items() if len(keys) > 1]
        small = [name for name, row in self.rows.items() if row.small and tasks[name]]
        of_small = [Group("small", tuple(small))] if small else []
        named = in_groups({name: row.group for name, row in self.rows.items() if tasks[name]})
        of_groups = [Group(name, tuple(members)) for name, members in named.items()]
        return [*several, *of_small, *of_groups, Group("all", tuple(name for name in self.rows if tasks[name]))]

    def with_predictions(
        self, logging_output: dict[str, Any], sample: dict[str, Any], predictions: Tensor
    ) -> dict[str, Any]:
        """A validation batch's logging output with its predictions (E, …), filled up with NaN, of the batch's set."""
        values = flattened(sample["id"], predictions)
        found = {f"_{sample['task']}_{name}": value for name, value in zip(GATHERED, values, strict=True)}
        return {**logging_output, **found}

    @staticmethod
    def logging_outputs_can_be_summed(criterion: Any) -> bool:
        """In training; a validation's predictions are gathered."""
        return bool(criterion.training and criterion.logging_outputs_can_be_summed())

    def log_figures(self, logging_outputs: list[dict[str, Any]]) -> None:
        """Log each set's metric, and the means of tasks and groups; of a validation alone, which has predictions."""
        if not any(name.endswith("_predictions") for log in logging_outputs for name in log):
            return
        for key in self.evaluated:
            for name in GATHERED:
                values = _gathered(logging_outputs, key, name)
                if len(values):
                    metrics.log_concat_tensor(f"_{key}_{name}", values)
            for metric in self.metrics_of(key):
                metrics.log_derived(f"{key}_{metric}", partial(self._set_score, key=key, metric=metric), 1000)
        for group in self.groups():
            metrics.log_derived(group.name, partial(self._group_score, group=group), 1001)

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """As fairseq's; when a checkpoint is validated, the first process prints and writes its scores."""
        super().reduce_metrics(logging_outputs, criterion)
        if self.report is not None and is_first_process():
            values = {key: [_gathered(logging_outputs, key, name) for name in GATHERED] for key in self.evaluated}
            self.report.end({key: self._reported(key, *both) for key, both in values.items() if len(both[0])})

    def metrics_of(self, key: str) -> list[str]:
        """Those of a set, first the one that averages are of."""
        row = self.rows[key.partition("/")[0]]
        return [row.metric, *row.also]

    def _reported(self, key: str, examples: Tensor, predictions: Tensor) -> FoundSet:
        """What was found of a set, with what one label for every example would score."""
        task = key.partition("/")[0]
        found, gathered = self._found(key, examples, predictions), _gathered_values(examples, predictions)
        split, row = self.evaluated[key], self.rows[task]
        majority = majority_scores(self.metrics_of(key), row, split, gathered)
        return replace(
            found, majority=majority, constant=only_answer(self.scored(task).label_text(split, gathered, row.labels))
        )

    def _found(self, key: str, examples: Tensor, predictions: Tensor) -> FoundSet:
        """What each metric of a set is made of."""
        if key in self._found_sets and self._found_sets[key][0] is predictions:  # asked for several figures
            return self._found_sets[key][1]
        task_type = self.scored(key.partition("/")[0])
        gathered = _gathered_values(examples, predictions)
        columns = {name: task_type.columns(name, self.evaluated[key], gathered) for name in self.metrics_of(key)}
        found = FoundSet(len(columns[self.metrics_of(key)[0]][0]), columns)
        self._found_sets[key] = (predictions, found)
        return found

    def _set_scores(self, meters: Mapping[str, Any], key: str) -> dict[str, float]:
        """The metrics of a set, rounded; NaN where nothing was predicted."""
        values = [meters.get(f"_{key}_{name}") for name in GATHERED]
        if any(value is None for value in values):
            return dict.fromkeys(self.metrics_of(key), math.nan)
        found = self._found(key, *(value.tensor for value in values if value is not None))
        return {name: round(score(name, *columns), 2) for name, columns in found.columns.items()}

    def _set_score(self, meters: Mapping[str, Any], key: str, metric: str) -> float:
        return self._set_scores(meters, key)[metric]

    def _group_score(self, meters: Mapping[str, Any], group: Group) -> float:
        """The mean over tasks, of which one with several sets counts once."""
        sets = [[key for key in self.evaluated if task in (key, key.partition("/")[0])] for task in group.tasks]
        scores = [[self._set_score(meters, key, self.metrics_of(key)[0]) for key in keys] for keys in sets]
        return round(float(np.mean([np.mean(of_task) for of_task in scores])), 2)

    def figures(self, meters: Mapping[str, Any], name: str | None) -> dict[str, float]:
        """The loss of a set and its metric, a group's mean, or the loss of everything."""
        if name is None:
            return {"loss": float(meters["loss"].avg)}
        if name in self.evaluated:
            return {"loss": float(meters[f"{name}_loss"].avg), **self._set_scores(meters, name)}
        return {"mean": self._group_score(meters, next(group for group in self.groups() if group.name == name))}


def _check_names(task: str, row: TaskRow) -> None:
    for what, name in (("the name of a task", task), (f"the group of {task}", row.group)):
        if name in OF_ALL:
            raise_invalid(what, f"none of {', '.join(OF_ALL)}, which a validation's averages have", name)
    named = [row.metric, *row.also]
    if len(set(named)) < len(named):
        raise_invalid(f"the metrics of {task}", "different ones", ", ".join(named))


def _gathered_values(examples: Tensor, predictions: Tensor) -> Predictions:
    return Predictions.gathered(examples.numpy(), predictions.double().numpy())


def _gathered(logging_outputs: Sequence[Mapping[str, Any]], key: str, name: str) -> Tensor:
    """One of `GATHERED` of a set, of all batches and processes."""
    parts = [log[f"_{key}_{name}"].cpu() for log in logging_outputs if f"_{key}_{name}" in log]
    return torch.cat(parts) if parts else torch.empty(0)
