"""`--task glue`: language understanding, a benchmark's tasks trained together or some of them.

MT-TaG, §3.3: batches mix examples of several tasks, which share the encoder; each task has its head and its metric.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.logging import metrics
from fairseq.tasks import register_task
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from fairseq_mtmoe.analysis.task_scores import named_groups
from fairseq_mtmoe.answers import Answer, Predicted, answer_of, flattened
from fairseq_mtmoe.backbones.bert.encoder_file import PretrainedEncoder
from fairseq_mtmoe.criterions.multitask import MultitaskCriterion
from fairseq_mtmoe.data.mixtures.evaluation import EvaluationMixture
from fairseq_mtmoe.data.mixtures.training import TrainingMixture
from fairseq_mtmoe.data.nlu.dataset import TaskCollate
from fairseq_mtmoe.data.nlu.few_shot import shares_of
from fairseq_mtmoe.data.nlu.loader import BenchmarkLoader
from fairseq_mtmoe.data.nlu.table import TaskRow, chosen_rows, load_tables
from fairseq_mtmoe.data.nlu.tokenizing import TextTokenizer, TokenizedSplit
from fairseq_mtmoe.errors import UserError, must_be
from fairseq_mtmoe.models._encoder import note_sizes
from fairseq_mtmoe.slots.model_inputs import unwrapped
from fairseq_mtmoe.tasks._multitask.groups import Group
from fairseq_mtmoe.tasks._multitask.run_log import is_first_process
from fairseq_mtmoe.tasks._multitask.sampling import plan_of
from fairseq_mtmoe.tasks._multitask.task import Multitask
from fairseq_mtmoe.tasks.glue.config import GlueConfig
from fairseq_mtmoe.tasks.glue.encoder_source import SERIALIZED, TOKENIZER, checkpoint_of, encoder_source
from fairseq_mtmoe.tasks.glue.metrics import check_installed, check_metric, score
from fairseq_mtmoe.tasks.glue.report import FoundSet, ValidationReport

CACHE = "mtmoe-cache"
GATHERED = ("examples", "predictions")  # of a validation: predicted values (V,), and the example that each is of


@register_task("glue", dataclass=GlueConfig)
class GlueTask(Multitask):
    """A benchmark. Its tasks are the table's rows of `--glue-tasks`; its groups are Small and All."""

    def __init__(self, args: Namespace) -> None:
        super().__init__(args)
        self.args = args
        tables = [Path(path) for path in (args.task_table or "").split(",") if path]
        self.table = load_tables(tables)
        self.rows: dict[str, TaskRow] = chosen_rows(self.table, args.glue_tasks.split(","))
        self.answers: dict[str, Answer] = {name: answer_of(row) for name, row in self.rows.items()}
        for name, row in self.rows.items():
            for metric in (row.metric, *row.also):
                check_metric(name, metric, self.answers[name].metrics, len(row.labels))
        self.shares = shares_of(args.train_share, self.table)
        self.set_up_tasks(list(self.rows), args.save_dir, args.train_subset, args.update_freq)
        self.pretrained: PretrainedEncoder | None = None
        self.begins_with_checkpoint = False
        self.evaluated: dict[str, TokenizedSplit] = {}  # the sets of the split that was loaded last
        self._found_sets: dict[str, tuple[Tensor, FoundSet]] = {}  # what was found of the last predictions
        self.report = ValidationReport(args, self.rows) if args.path else None  # in training there is no such path

    @classmethod
    def add_args(cls, parser: Any) -> None:
        """Add the options of the configuration to fairseq's command line."""
        gen_parser_from_dataclass(parser, GlueConfig())

    @classmethod
    def setup_task(cls, cfg: Any, **kwargs: Any) -> GlueTask:
        """Called by fairseq.

        Raises:
            UserError: an option is wrong, or a table, the data directory or a package is missing.
        """
        check_installed()
        values: Any = OmegaConf.to_container(cfg, resolve=True) if isinstance(cfg, DictConfig) else vars(cfg)
        args = Namespace(**values, sampling_weights=None, virtual_data_size=None)
        if not args.data or not Path(args.data).is_dir():
            must_be("data", "an existing directory", args.data)
        args.given_duration = args.heating_epochs is not None or args.heating_updates is not None
        if not args.given_duration:
            args.heating_epochs = args.max_epoch or None
        return cls(args)

    # ---- encoder and heads ----

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """As fairseq's; a new model begins with the pretrained encoder, and has the heads of the tasks."""
        if not from_checkpoint:
            self.pretrained = encoder_source(self.args)
            self.begins_with_checkpoint = checkpoint_of(self.args) is not None
            if self.args.max_positions > self.pretrained.config.max_positions:
                rule = f"at most {self.pretrained.config.max_positions}, as in the encoder"
                must_be("--max-positions", rule, self.args.max_positions)
            self.state.merge_state_dict({TOKENIZER: self.pretrained.tokenizer[SERIALIZED]})
            note_sizes(cfg, self.pretrained.config, {name: answer.head for name, answer in self.answers.items()})
        model = super().build_model(cfg, from_checkpoint)
        self.pretrained = None
        return model

    def build_criterion(self, cfg: Any) -> MultitaskCriterion:
        """As fairseq's.

        Raises:
            UserError: it is another than `multitask`, such as fairseq's default.
        """
        criterion = super().build_criterion(cfg)
        if not isinstance(criterion, MultitaskCriterion):
            must_be("--criterion", "multitask", cfg._name)
        return criterion

    @property
    def tokenizer(self) -> TextTokenizer:
        """The encoder's; known once a model was built, or a checkpoint loaded."""
        return TextTokenizer(getattr(self.state, TOKENIZER), self.args.max_positions)

    # ---- data ----

    @property
    def token_cache(self) -> Path:
        """The folder of tokenized splits."""
        return Path(self.args.token_cache) if self.args.token_cache else Path(self.args.data) / CACHE

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **kwargs: Any) -> None:
        """Load a split of all tasks.

        Raises:
            UserError: a task has no such data, a file is not what the table says, or the scores of a validation cannot
                be written to `--results-path`.
        """
        self._expect_split(split)
        if self.report is not None and is_first_process():
            self.report.begin(split)
        tokenizer = self.tokenizer
        loader = BenchmarkLoader(Path(self.args.data), self.rows, split, tokenizer, self.token_cache)
        ids = [self.id_of(task, "a task of --glue-tasks") for task in loader.tasks]
        collate = TaskCollate(tokenizer.padding, loader.tasks)
        if split == self.args.train_subset:
            loader.keep(self.shares, self.args.train_share_seed)
            plan, draws = plan_of(self.args, loader), [self.answers[task].dropout_draws for task in loader.tasks]
            self.datasets[split] = TrainingMixture(loader, plan, ids, collate, epoch, self.num_updates, draws)
        else:
            self.datasets[split] = EvaluationMixture(loader.keys, loader.load(), ids, collate)
            self.evaluated = dict(zip(loader.keys, loader.sets, strict=True))

    def uncertainties(
        self, sample: dict[str, Any], model: nn.Module, criterion: Any, under_dropout: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As each task's kind of answer says."""
        ids_E, found = unwrapped(criterion).uncertainties(model, sample, under_dropout)
        return ids_E, found.entropy, found.most

    def about_the_run(self) -> dict[str, Any]:
        """Also which share of the training examples it has; how many they are is said with its sampling."""
        shares = {name: self.shares[name] for name in self.rows if self.shares[name] < 1}
        drawn = {"train_shares": shares, "train_share_seed": self.args.train_share_seed} if shares else {}
        return {**super().about_the_run(), **drawn}

    def _expect_split(self, split: str) -> None:
        """Refuse a split that no task has, and training data that one has not."""
        lacking = [name for name, row in self.rows.items() if not row.sets(split)]
        if lacking and (split == self.args.train_subset or len(lacking) == len(self.rows)):
            has = ", ".join(self.rows[lacking[0]].splits)
            raise UserError(f"`{lacking[0]}` must have a split `{split}` in the table of tasks, but has {has} alone.")

    def for_models(self, sample: dict[str, Any], models: Sequence[Any]) -> dict[str, Any]:
        """The batch with the task id of each row among the models' inputs."""
        if sample:
            rows = len(sample["net_input"]["src_tokens"])
            ids = sample["task_ids"].repeat_interleave(sample["candidates"], output_size=rows)
            sample = {**sample, "task_ids": ids}
        return super().for_models(sample, models)

    def max_positions(self) -> None:
        """None: no example is too long. `--max-positions` limits sequences, which were cut when they were tokenized.

        A ranking has one for each candidate, of which there may be any number: for `--max-tokens` they count together.
        """

    # ---- validation ----

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Called by fairseq before it trains.

        Raises:
            UserError: the figure by which checkpoints are compared is none that a validation gives, or an example to
                validate on does not fit into a batch.
        """
        figures = [f"{key}_{name}" for key in self.evaluated for name in (*self._metrics(key), "loss")]
        known = ["loss", *(group.name for group in self.groups()), *figures]
        if self.evaluated and self.args.best_checkpoint_metric not in known:
            rule = f"one of {', '.join(known)}"
            must_be("--best-checkpoint-metric", rule, self.args.best_checkpoint_metric)
        for dataset in self.datasets.values():
            if isinstance(dataset, EvaluationMixture):
                dataset.check_fit(np.arange(len(dataset)), self.args.max_tokens_valid)
        super().begin_epoch(epoch, model)

    @property
    def validated_tasks(self) -> list[str]:
        """The sets of the split that was loaded last."""
        return list(self.evaluated)

    def groups(self) -> list[Group]:
        """The tasks with several sets, the small tasks if there are some, those of groups if of several, and all."""
        tasks = {name: [key for key in self.evaluated if key.partition("/")[0] == name] for name in self.rows}
        several = [Group(f"{name}_mean", (name,)) for name, keys in tasks.items() if len(keys) > 1]
        small = [name for name, row in self.rows.items() if row.small and tasks[name]]
        of_small = [Group("small", tuple(small))] if small else []
        named = named_groups({name: row.group for name, row in self.rows.items() if tasks[name]})
        of_groups = [Group(name, tuple(members)) for name, members in named.items()]
        return [*several, *of_small, *of_groups, Group("all", tuple(name for name in self.rows if tasks[name]))]

    def valid_step(self, sample: dict[str, Any], model: Any, criterion: Any, **kwargs: Any) -> Any:
        """As fairseq's, with the predictions of the batch's set in the logging output, and the examples they are of."""
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion, **kwargs)
        if sample:
            values = flattened(sample["id"], logging_output.pop("predictions"))
            logging_output |= {f"_{sample['task']}_{name}": value for name, value in zip(GATHERED, values, strict=True)}
        return loss, sample_size, logging_output

    @staticmethod
    def logging_outputs_can_be_summed(criterion: Any) -> bool:
        """In training; a validation's predictions are gathered."""
        return bool(criterion.training)

    def log_figures(self, logging_outputs: list[dict[str, Any]]) -> None:
        """Log each set's metric, and the means of tasks and groups; of a validation alone, which has predictions."""
        if not any(name.endswith("_predictions") for log in logging_outputs for name in log):
            return
        for key in self.evaluated:
            for name in GATHERED:
                values = _gathered(logging_outputs, key, name)
                if len(values):
                    metrics.log_concat_tensor(f"_{key}_{name}", values)
            for metric in self._metrics(key):
                metrics.log_derived(f"{key}_{metric}", partial(self._set_score, key=key, metric=metric), 1000)
        for group in self.groups():
            metrics.log_derived(group.name, partial(self._group_score, group=group), 1001)

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """As fairseq's; when a checkpoint is validated, the first process prints and writes its scores."""
        super().reduce_metrics(logging_outputs, criterion)
        if self.report is not None and is_first_process():
            values = {key: [_gathered(logging_outputs, key, name) for name in GATHERED] for key in self.evaluated}
            self.report.end({key: self._found(key, *both) for key, both in values.items() if len(both[0])})

    def _metrics(self, key: str) -> list[str]:
        """Those of a set, first the one that averages are of."""
        row = self.rows[key.partition("/")[0]]
        return [row.metric, *row.also]

    def _found(self, key: str, examples: Tensor, predictions: Tensor) -> FoundSet:
        """What each metric of a set is made of."""
        if key in self._found_sets and self._found_sets[key][0] is predictions:  # asked for several figures
            return self._found_sets[key][1]
        answer = self.answers[key.partition("/")[0]]
        predicted = Predicted.gathered(examples.numpy(), predictions.double().numpy())
        columns = {name: answer.columns(name, self.evaluated[key], predicted) for name in self._metrics(key)}
        found = FoundSet(len(columns[self._metrics(key)[0]][0]), columns)
        self._found_sets[key] = (predictions, found)
        return found

    def _set_scores(self, meters: Mapping[str, Any], key: str) -> dict[str, float]:
        """The metrics of a set, rounded; NaN where nothing was predicted."""
        values = [meters.get(f"_{key}_{name}") for name in GATHERED]
        if any(value is None for value in values):
            return dict.fromkeys(self._metrics(key), math.nan)
        found = self._found(key, *(value.tensor for value in values if value is not None))
        return {name: round(score(name, *columns), 2) for name, columns in found.columns.items()}

    def _set_score(self, meters: Mapping[str, Any], key: str, metric: str) -> float:
        return self._set_scores(meters, key)[metric]

    def _group_score(self, meters: Mapping[str, Any], group: Group) -> float:
        """The mean over tasks, of which one with several sets counts once."""
        sets = [[key for key in self.evaluated if task in (key, key.partition("/")[0])] for task in group.tasks]
        scores = [[self._set_score(meters, key, self._metrics(key)[0]) for key in keys] for keys in sets]
        return round(float(np.mean([np.mean(of_task) for of_task in scores])), 2)

    def figures(self, meters: Mapping[str, Any], name: str | None) -> dict[str, float]:
        """The loss of a set and its metric, a group's mean, or the loss of everything."""
        if name is None:
            return {"loss": float(meters["loss"].avg)}
        if name in self.evaluated:
            return {"loss": float(meters[f"{name}_loss"].avg), **self._set_scores(meters, name)}
        return {"mean": self._group_score(meters, next(group for group in self.groups() if group.name == name))}


def _gathered(logging_outputs: Sequence[Mapping[str, Any]], key: str, name: str) -> Tensor:
    """One of `GATHERED` of a set, of all batches and processes."""
    parts = [log[f"_{key}_{name}"].cpu() for log in logging_outputs if f"_{key}_{name}" in log]
    return torch.cat(parts) if parts else torch.empty(0)
