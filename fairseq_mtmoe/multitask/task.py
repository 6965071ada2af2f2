"""Base of tasks that train several tasks: task ids, sampling, figures, a run log.

A *task* here is sampled and validated by its name: a benchmark's task, or a language pair of
translation. The model gets a *task id*, an index into `task_names`; several tasks may share one.
"""

import logging
import os
from abc import ABC, abstractmethod
from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from fairseq.logging import metrics
from fairseq.optim import AMPOptimizer
from fairseq.tasks import FairseqTask
from omegaconf import open_dict
from torch import Tensor, nn

from fairseq_mtmoe.checkpoints import file_io
from fairseq_mtmoe.checkpoints.rebuild import model_options
from fairseq_mtmoe.core.errors import UserError, raise_invalid, shortened
from fairseq_mtmoe.core.protocols import TrainingTask, training_model
from fairseq_mtmoe.multitask import run_log, selection, validation
from fairseq_mtmoe.multitask.mixtures.candidates import CANDIDATES
from fairseq_mtmoe.multitask.mixtures.dataset import BatchLimits
from fairseq_mtmoe.multitask.mixtures.training import PADDING, TrainingMixture
from fairseq_mtmoe.multitask.selection import REPORT_EVERY, Selection, SelectionRecord
from fairseq_mtmoe.multitask.task_sampling import (
    announce_part,
    log_run,
    on_device_of,
    refuse_too_long,
)
from fairseq_mtmoe.multitask.validation import (
    GateMovement,
    Group,
    add_task_sums,
    log_groups,
    plain_numbers,
)
from fairseq_mtmoe.report.routing import unmoved
from fairseq_mtmoe.report.run_log import FILE_NAME
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.slots.sparse_model import model_size
from fairseq_mtmoe.training.epochs import SharedEpochIterator
from fairseq_mtmoe.training.resuming import checkpoint_and_option

logger = logging.getLogger(__name__)


class Multitask(TrainingTask, FairseqTask, ABC):
    """Mixin before fairseq's task class, with the trainer's hooks."""

    tasks_event_key = "tasks"  # key of the tasks' figures in the run log's event `valid`
    groups_event_key = "groups"  # key of the groups' figures there
    args: Namespace

    def set_up_tasks(self, task_names: Sequence[str]) -> None:
        """Set the task names and begin the run log; called by constructors.

        A model that takes task ids keeps the `task_names` of its training.
        """
        self.task_names = list(task_names)
        self.run_log = run_log.TrainingRunLog(os.path.join(self.args.save_dir, FILE_NAME))
        self.stopwatch = run_log.Stopwatch()
        self.training_record = run_log.TrainingRecord()
        self.movement = GateMovement()
        self.num_updates = 0  # set by the trainer before each epoch
        self._run: dict[str, Any] = {"options": {}}  # options and model size, see `begins`
        self._device = torch.device("cpu")
        self._train_subset: str = self.args.train_subset
        self._selection: SelectionRecord | None = None  # from the first candidates on
        self._saved_selection: dict[str, Any] | None = None
        self._model_names: list[str] | None = None
        self._evaluated_split = ""
        self._epoch = 1
        # Not yet logged: epoch, number, updates before.
        self._parts_ahead: list[tuple[int, int, int]] = []

    @property
    @abstractmethod
    def validated_tasks(self) -> list[str]:
        """Names of the tasks that a validation gives figures for."""

    @abstractmethod
    def groups(self) -> list[Group]:
        """Return the groups of tasks that a validation gives averages for."""

    @abstractmethod
    def uncertainties(
        self, sample: dict[str, Any], model: nn.Module, criterion: Any, under_dropout: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the `id`s of examples, their entropies and the maxima of these.

        With `under_dropout`, only examples whose entropy is measured under dropout, else only the
        others; see `TrainingMixture.dropout_draws`.
        """

    def shown_name(self, key: str) -> str:
        """Return the name that logs and the screen show for a sampling plan's task."""
        return key

    def _shown_names(self, dataset: TrainingMixture) -> list[str]:
        return list(map(self.shown_name, dataset.plan.names))

    def log_figures(self, logging_outputs: list[dict[str, Any]]) -> None:
        """Log the figures of each validated task and each group."""
        alone = [Group(name, (name,)) for name in self.validated_tasks]
        log_groups(logging_outputs, [*alone, *self.groups()])

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model: give a new one the task names, or take them from a trained one."""
        if not from_checkpoint and not isinstance(cfg, Namespace) and "task_names" in cfg:
            with open_dict(cfg):
                cfg.task_names = ",".join(self.task_names)
        model = super().build_model(cfg, from_checkpoint)
        hooks = training_model(model)
        if not from_checkpoint and hooks.noted_options:
            with open_dict(cfg):
                cfg.update(hooks.noted_options)
        names = hooks.task_names
        if from_checkpoint and names:
            if self._model_names not in (None, names):
                raise UserError(
                    f"The models of an ensemble must have the same tasks, but one has "
                    f"{', '.join(self._model_names or ())} and another {', '.join(names)}."
                )
            self.task_names = self._model_names = list(names)
        return model

    def checkpoint_to_go_on_from(self) -> str | None:
        """Return the checkpoint to continue from, if it is a file, or None."""
        path, _ = checkpoint_and_option(self.args, self.args.checkpoint_suffix) or ("", "")
        return path if os.path.isfile(path) else None

    def options_to_go_on_with(self) -> Mapping[str, Any]:
        """Return the model options of the checkpoint to continue from."""
        path = self.checkpoint_to_go_on_from()
        return {} if path is None else model_options(file_io.peek(path) or {}) or {}

    @staticmethod
    def refuse_other_tasks(
        option: str, path: str, before: Sequence[str], now: Sequence[str], rule: str = ""
    ) -> NoReturn:
        """Raise the `UserError` of a run that continues with other tasks."""
        raise UserError(
            f"`{option}` must be {','.join(before)}{rule}, to continue from `{path}`, but is "
            f"{','.join(now)} instead; `--finetune-from-model {path}` with another `--save-dir` "
            "starts a run of other tasks from its weights."
        )

    def id_of(self, name: str, described: str) -> int:
        """Return a name's task id (UserError: the model lacks it).

        described: what the name is, for the error.
        """
        if name not in self.task_names:
            raise_invalid(
                described, f"one of the model's tasks {shortened(self.task_names, name)}", name
            )
        return self.task_names.index(name)

    def for_models(self, sample: dict[str, Any], models: Sequence[Any]) -> dict[str, Any]:
        """Return the batch with task ids among the models' inputs, if all accept them."""
        if not sample:
            return sample
        net_input = dict(sample["net_input"])
        if all(training_model(unwrapped(model)).accepts_task_ids for model in models):
            net_input["task_ids"] = sample["task_ids"]
        return {**sample, "net_input": net_input}

    def has_sharded_data(self, split: str) -> bool:
        """Return False: training data changes shards itself, and need not be reloaded."""
        return False

    def get_batch_iterator(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Return an epoch iterator; only training batches are made anew in each epoch."""
        if isinstance(dataset, TrainingMixture):
            return self._training_iterator(dataset, *args, **kwargs)
        loaded = [split for split, other in self.datasets.items() if other is dataset]
        self._evaluated_split = loaded[0] if loaded else ""
        if loaded:
            dataset.interleaves = "max_valid_steps" in self._run["options"]
        else:  # interactive: one data set for each group of lines
            kwargs["disable_iterator_cache"] = True
        return FairseqTask.get_batch_iterator(self, dataset, *args, **kwargs)

    def _training_iterator(
        self,
        dataset: TrainingMixture,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        max_positions: Any = None,
        ignore_invalid_inputs: bool = False,
        required_batch_size_multiple: int = 1,
        *,
        num_shards: int = 1,
        data_buffer_size: int = 0,
        disable_iterator_cache: bool = False,
        update_epoch_batch_itr: bool = False,
        **options: Any,
    ) -> SharedEpochIterator:
        dataset.updates = self.num_updates

        def make_batches(dataset: TrainingMixture, epoch: int) -> list[Any]:
            dataset.set_epoch(epoch)
            limits = BatchLimits(max_tokens, max_sentences, required_batch_size_multiple)
            freqs = self.args.update_freq  # one per epoch; the last one holds for all later epochs
            per_update = num_shards * freqs[min(epoch, len(freqs)) - 1]
            batches, too_long = dataset.epoch_batches(max_positions, limits, per_update)
            if not batches:
                shortest = int(dataset.num_tokens_vec(too_long).min())
                refuse_too_long(shortest, max_tokens, max_positions)
            # Logs the examples that are skipped, or raises.
            self.filter_indices_by_size(too_long, dataset, max_positions, ignore_invalid_inputs)
            return batches

        return SharedEpochIterator(
            update_freq=self.args.update_freq,
            dataset=dataset,
            collate_fn=dataset.collater,
            batch_sampler=make_batches,
            num_shards=num_shards,
            buffer_size=data_buffer_size,
            **options,
        )

    def begin_epoch(self, epoch: int, model: Any) -> None:
        """Log the epoch's sampling; called by fairseq before it trains (UserError)."""
        training_model(unwrapped(model)).expect_weights()
        dataset: TrainingMixture = self.datasets[self._train_subset]
        log_run(self.run_log, dataset, epoch, self._described_run, self._shown_names(dataset))
        parts = dataset.plan.parts(epoch)
        self._parts_ahead = [(epoch, number, part.update) for number, part in enumerate(parts)]
        self._announce_parts(self.num_updates)

    def _announce_parts(self, update: int) -> None:
        """Log the sampling of the epoch's parts that begin at this update or earlier."""
        while self._parts_ahead and self._parts_ahead[0][-1] <= update:
            dataset: TrainingMixture = self.datasets[self._train_subset]
            names = self._shown_names(dataset)
            announce_part(self.run_log, dataset.plan, *self._parts_ahead.pop(0), names)

    def train_step(
        self, sample: dict[str, Any], model: Any, criterion: Any, optimizer: Any, update_num: int,
        ignore_grad: bool = False, **kwargs: Any,
    ) -> Any:  # fmt: skip
        """Train on a batch, or on the most uncertain of its candidates."""
        if not self.stopwatch.is_running:
            validation.set_counting(model, False)
            self.movement.rest()
            self.stopwatch.start()
        self._announce_parts(update_num)
        self.movement.begin(model, update_num)
        if ignore_grad:
            sample = self._dummy_batch(sample, model)
        chosen = None
        if CANDIDATES in sample:
            device_type = next(model.parameters()).device.type
            with torch.autocast(device_type, enabled=isinstance(optimizer, AMPOptimizer)):
                chosen = self.choose(sample, unwrapped(model), criterion, update_num)
            batch = self.datasets[self._train_subset].chosen_batch(chosen.items)
            sample = on_device_of(batch, model)
        sample = self.for_models(sample, [model])
        if not ignore_grad and PADDING in sample:
            padded, positions = sample[PADDING]
            metrics.log_scalar("padding", padded / positions, positions, priority=185, round=4)
        result = super().train_step(
            sample, model, criterion, optimizer, update_num, ignore_grad, **kwargs
        )
        if chosen is not None:
            self._update = update_num + 1
            result[2].update(self.selection_record().note(chosen, counts=not ignore_grad))
        return result

    def _dummy_batch(self, sample: dict[str, Any], model: nn.Module) -> dict[str, Any]:
        """Return a batch that takes the same passes as the current sampling method's."""
        dataset: TrainingMixture | None = self.datasets.get(self._train_subset)
        if dataset is None or dataset.draws_candidates == (CANDIDATES in sample):
            return sample
        return on_device_of(dataset.collater([dataset[0]]), model)

    def choose(
        self, sample: dict[str, Any], model: nn.Module, criterion: Any, update: int
    ) -> Selection:
        """Return the most uncertain of a batch's candidates."""

        def measure(
            batch: dict[str, Any], model: nn.Module, under_dropout: bool
        ) -> tuple[Tensor, Tensor, Tensor]:
            model_batch = self.for_models(batch, [model])
            return self.uncertainties(model_batch, model, criterion, under_dropout)

        return selection.choose(sample, model, measure, update)

    def selection_record(self) -> SelectionRecord:
        """Return the record of the candidates; the first call begins it."""
        if self._selection is None:
            dataset = self.datasets[self._train_subset]
            names = self._shown_names(dataset)
            self._selection = SelectionRecord(dict(zip(names, dataset.plan.sizes, strict=True)))
            if self._saved_selection is not None:
                self._selection.restore(self._saved_selection)
        return self._selection

    def _report_selection(self) -> None:
        if self._selection is not None and (event := self._selection.take()):
            self.run_log.write("selection", update=self._update, **event)

    def begin_step(self) -> None:
        """See `TrainingTask`."""
        if self._selection is not None:
            self._selection.begin_step()

    def gather(self) -> None:
        """See `TrainingTask`; writes the selection to the run log before a save."""
        self._report_selection()

    def get_checkpoint_dict(self) -> dict[str, Any]:
        """Return the task's state for a checkpoint."""
        state = {
            "training_seconds": self.stopwatch.seconds,
            "training_tokens": self.training_record.tokens,
            "gates": self.movement.state(),
        }
        if self._selection is not None:
            self._saved_selection = self._selection.state()
        if self._saved_selection is not None:
            state["selection"] = self._saved_selection
        return {type(self).__name__: state}

    def set_checkpoint_dict(self, state: dict[str, Any]) -> None:
        """Restore a checkpoint's state of the task."""
        self.stopwatch.stop_at(state["training_seconds"])
        self.training_record.tokens = state.get("training_tokens")
        self._selection = None
        self._saved_selection = state.get("selection")
        if state.get("gates") is not None:
            self.movement.restore(state["gates"])

    def begin_valid_epoch(self, epoch: int, model: Any) -> None:
        """Stop the training clock, and start the validation's counts."""
        self._epoch = epoch
        self._report_selection()
        self.stopwatch.stop()
        self._watch_validation(model)

    def valid_step(self, sample: dict[str, Any], model: Any, criterion: Any, **kwargs: Any) -> Any:
        """Run a validation step; add the batch's sums under its task's name."""
        if not sample:  # a rank of `fairseq-validate` without a batch left
            return 0.0, 0, {}
        sample = self.for_models(sample, [model])
        loss, sample_size, logging_output = super().valid_step(sample, model, criterion, **kwargs)
        if "task" in sample:
            add_task_sums(logging_output, sample["task"], self.validated_tasks)
        return loss, sample_size, logging_output

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: Any) -> None:
        """Reduce as fairseq does; a validation also logs figures of tasks and groups."""
        # Saves a host synchronisation per number.
        logging_outputs = list(map(plain_numbers, logging_outputs))
        if any(log.get("sample_size", 1) for log in logging_outputs):  # 0: no example has a target
            super().reduce_metrics(logging_outputs, criterion)
        if self.stopwatch.is_running:
            self.training_record.add_tokens(logging_outputs)
        if self._selection is not None and self._selection.has_selection(logging_outputs):
            self._selection.add(logging_outputs)
            if self._update % REPORT_EVERY == 0:
                self._report_selection()
        first = next(iter(self.validated_tasks), None)
        if any(f"{first}_loss" in log for log in logging_outputs):
            self.log_figures(logging_outputs)

    # ---- the run log ----

    def about_the_run(self) -> dict[str, Any]:
        """Return the task's fields of the event `run`, beside its sampling."""
        return {"task_names": self.task_names}

    def _described_run(self) -> dict[str, Any]:
        made = run_log.environment(self._device) if run_log.is_first_process() else {}
        return {**self.about_the_run(), "data": self.args.data, **self._run, **made}

    def begins(self, options: Mapping[str, Any], device: torch.device, model: nn.Module) -> None:
        """Keep options, device and the model's size for the event `run` (UserError)."""
        validation.refuse_training_subset(options, self._train_subset)
        self._device = device
        self._run = {"options": dict(options), **model_size(model)}

    def trained(self, update: int, figures: Mapping[str, Any]) -> None:
        """Write the event `train`, with means since the last one."""
        means = self.training_record.add(update, figures)
        if means is not None:
            self.run_log.write("train", update=update, **self._so_far(), **means)

    def sparsified(self, update: int, num_experts: int, model: nn.Module) -> None:
        """Write the event `sparsified`."""
        self.run_log.write(
            "sparsified", update=update, num_experts=num_experts, **model_size(model)
        )

    def ended(self) -> None:
        """Warn of gates that have hardly learned."""
        still_gates = unmoved(list(self.movement.latest))
        if still_gates and run_log.is_first_process():
            reasons = [f"{reason} in {', '.join(layers)}" for reason, layers in still_gates.items()]
            logger.warning(f"gates have hardly learned: {'; '.join(reasons)} (--gate-lr-factor)")

    def expert_comm(
        self, update: int, updates: int, layers: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Write the event `expert_comm`."""
        self.run_log.write("expert_comm", update=update, updates=updates, layers=layers)

    def _so_far(self) -> dict[str, Any]:
        return {"minutes": self.stopwatch.seconds / 60, "tokens": self.training_record.tokens}

    def _watch_validation(self, model: nn.Module) -> None:
        """Restart the counts of expert tokens, source weights and changed gates."""
        validation.set_counting(model, True)
        self.movement.watch(model)

    def figures(self, meters: Mapping[str, Any], name: str | None) -> dict[str, float]:
        """Return the logged figures of a task or a group, or (None) of all data."""
        return validation.group_values(meters, "" if name is None else f"{name}_")

    def post_validate(self, model: Any, stats: dict[str, Any], meters: Mapping[str, Any]) -> None:
        """Write a subset's figures to the run log.

        A `UserError` refuses a metric of the best checkpoint that is not among the figures.
        """
        metric = self._run["options"].get("best_checkpoint_metric")
        if metric is not None and metric not in stats:
            raise_invalid("--best-checkpoint-metric", f"one of {shortened(stats, metric)}", metric)
        position = {
            "epoch": self._epoch,
            "update": stats["num_updates"],
            "subset": self._evaluated_split,
        }
        tasks = {}
        groups = {}
        for name in self.validated_tasks:
            if f"{name}_loss" in meters:
                tasks[name] = self.figures(meters, name)
        for group in self.groups():
            name = group.name
            if tasks and (name in meters or f"{name}_loss" in meters):
                groups[name] = self.figures(meters, name)
        figures = {self.tasks_event_key: tasks, self.groups_event_key: groups}
        self.run_log.write(
            "valid", **position, **self._so_far(), **figures, all=self.figures(meters, None)
        )
        if layers := validation.expert_counts(model):
            self.run_log.write("experts", **position, task_names=self.task_names, layers=layers)
        if gates := self.movement.figures(model):
            self.run_log.write("gates", **position, since=self.movement.since, layers=gates)
        weights = validation.mixture_weights(model)
        event = training_model(unwrapped(model)).gates_event
        if weights and event is not None:
            name, fields = event
            self.run_log.write(name, **position, **fields, layers=weights)
        self._watch_validation(model)
