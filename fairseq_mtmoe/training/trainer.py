"""fairseq's trainer, with sharded experts and models that become sparse.

In a single process, with a model without our options, it behaves exactly as fairseq's.
"""

import functools
import gc
import logging
import os
import signal
import sys
from typing import Any

import torch
from fairseq import utils
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from torch import Tensor

from fairseq_mtmoe.checkpoints.key_maps import ENDED_VALIDATION, GATE_RATE
from fairseq_mtmoe.checkpoints.optimizer_state import check_when_loading
from fairseq_mtmoe.core.errors import UserError
from fairseq_mtmoe.core.protocols import training_task
from fairseq_mtmoe.moe import BaseGate, MoELayer, RunningPrices, remember_prices
from fairseq_mtmoe.slots import expert_slots
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.training import (
    averages,
    best,
    failures,
    resuming,
    saving,
    screen,
    steps,
    stopping,
)
from fairseq_mtmoe.training.metrics import ExpertCommLog, summed, tell_figures
from fairseq_mtmoe.training.option_check import (
    changed_options,
    check_options,
    will_exchange,
    with_option,
)
from fairseq_mtmoe.training.sparsify.in_training import maybe_sparsify, sparsify_average

logger = logging.getLogger(__name__)


class SparseTrainer(Trainer):
    """fairseq's trainer; its runs resume exactly, with any number of processes."""

    _wrapped_model: Any
    _wrapped_criterion: Any

    def __init__(
        self, cfg: Any, task: Any, model: Any, criterion: Any, quantizer: Any = None
    ) -> None:
        # fairseq's constructor calls methods that read these.
        self._slots = list(expert_slots(model).values())
        self._wrapped_dense = False
        self._idle = False
        self._is_stepping = False
        self._gate_rate = steps.GateRate(
            getattr(cfg.model, "gate_lr_factor", None),
            getattr(unwrapped(model), "gate_lr_factor", 1.0),
            lambda: self._layers,
        )
        self._train_workers = stopping.DataloaderWorkers()
        self._valid_workers = stopping.DataloaderWorkers()
        self._dummies: list[bool] = []  # whether each batch of the current step is a dummy
        super().__init__(cfg, task, model, criterion, quantizer)
        self._is_locked = False  # whether rank 0 has locked the folder
        self._lock: Any = None
        self._drawn: int | None = None  # the epoch for which batches were drawn, see `resuming.py`
        self._restored_draw: int | None = None
        self.left_out = False  # whether the last step made no update
        self.is_at_end = False  # whether the run ends with this validation, whatever its result
        # The validation that a signal ended: `at_end_of_epoch`, and the saved `position`
        self.ended_validation: dict[str, Any] | None = None
        self._memory = steps.OutOfMemory()
        self._agreed_signal: signal.Signals | None = None
        resuming.expect_checkpoint_file(self.cfg.checkpoint, self.checkpoint_suffix)
        screen.follow(self)
        self._hooks = training_task(task)
        self._hooks.begins(changed_options(cfg), self.device, model)
        check_options(cfg, model)
        if failures.several_processes() and will_exchange(model, self.data_parallel_world_size):
            failures.between_hosts()
        failures.set_timeout(getattr(cfg.model, "distributed_timeout", None))
        self._nonfinite = self._count_nonfinite()
        self._comm_log = ExpertCommLog(
            expert_slots(model), getattr(cfg.model, "log_expert_comm", False)
        )
        if self._nonfinite is not None:
            self.get_criterion().register_forward_hook(steps.show_in_gradients)

    def _count_nonfinite(self) -> steps.NonfiniteUpdates | None:
        """Return the counter; None if fairseq handles such updates, or updates are local."""
        cfg = self.cfg
        limit = getattr(cfg.model, "max_nonfinite", None)
        own_way = (
            cfg.common.amp
            or cfg.optimization.use_bmuf
            or cfg.distributed_training.ddp_backend == "slowmo"
        )
        if limit is None or own_way or self.tpu:
            return None
        return steps.NonfiniteUpdates(limit, cfg.checkpoint.save_dir)

    # ---- experts ----

    @property
    def _layers(self) -> list[MoELayer]:
        return [slot.moe for slot in self._slots if slot.moe is not None]

    @property
    def _exchanges(self) -> bool:
        """Whether experts are sharded, so that ranks wait for each other's steps."""
        return any(layer.experts.placement.is_sharded for layer in self._layers)

    @property
    def _awaits_experts(self) -> bool:
        """Whether the model trains dense now, and will get experts."""
        return bool(self._slots) and not self._layers

    def _sparsify_when_due(self) -> None:
        if not self._awaits_experts:
            return
        model = self.get_model()
        update = self.get_num_updates()
        self._set_seed()  # gates are initialized equally on all ranks, and in a resumed run
        if not maybe_sparsify(model, self.optimizer, update):
            return
        if self._ema is not None:
            sparsify_average(self._ema, model)
        self._idle = False
        # The all-to-all dispatcher has made new process groups.
        failures.set_timeout(getattr(self.cfg.model, "distributed_timeout", None))
        self._hooks.sparsified(update, max(layer.gate.num_experts for layer in self._layers), model)

    # ---- model, criterion and optimizer ----

    @property
    def model(self) -> Any:
        """The model in its DDP wrapper, which is rebuilt when the model becomes sparse."""
        self._drop_dense_wrapper()
        if self._wrapped_model is None:
            self._wrapped_model = steps.data_parallel_on_cpu(self, self._model)
        return super().model

    def _drop_dense_wrapper(self) -> None:
        if self._wrapped_model is not None and self._wrapped_dense and not self._awaits_experts:
            self._wrapped_model = None
            gc.collect()  # the old wrapper's hooks on the parameters go with it
        self._wrapped_dense = self._awaits_experts

    @property
    def criterion(self) -> Any:
        """The criterion, in a DDP wrapper if it has parameters."""
        if self._wrapped_criterion is None and utils.has_parameters(self._criterion):
            self._wrapped_criterion = steps.data_parallel_on_cpu(self, self._criterion)
        return super().criterion

    def _build_optimizer(self) -> None:
        """Build the optimizer, with our checks and rate of gates."""
        distributed = self.cfg.distributed_training
        sharding = distributed.zero_sharding if self.data_parallel_world_size > 1 else "none"
        # A run may continue in one process.
        with with_option(distributed, "zero_sharding", sharding):
            super()._build_optimizer()
        plain: Any = steps.unwrapped_optimizer(self._optimizer)
        for inner in steps.each_optimizer(plain):
            check_when_loading(
                inner.optimizer, lambda: [name for name, _ in resuming.trained_shapes(self)]
            )
        if self.device.type == "cpu" and torch.cuda.is_available():
            plain.clip_grad_norm = functools.partial(steps.clip_on_cpu, plain)
        self._gate_rate.follow(self._optimizer)

    def _build_ema(self) -> None:
        """Build the EMA; load `--ema-seed-model` by our loader instead of fairseq's."""
        with with_option(self.cfg.ema, "ema_seed_model", None):
            super()._build_ema()
        if self._ema is not None:
            averages.begin(self)

    # ---- data ----

    def get_train_iterator(
        self, epoch: int, combine: bool = True, load_dataset: bool = True, **kwargs: Any
    ) -> Any:
        """Return an epoch's iterator.

        A resumed run draws the same batches as at its start.
        """
        if load_dataset:
            draws_once = (
                not self.cfg.dataset.update_epoch_batch_itr
                and not self.task.has_sharded_data("train")
            )
            epoch = self._restored_draw or epoch
            self._restored_draw = None
            self._drawn = epoch if draws_once else None
        self._hooks.num_updates = self.get_num_updates()
        self._train_workers.end()
        make = functools.partial(super().get_train_iterator, epoch, combine, **kwargs)
        self._train_workers.iterator = resuming.resumable(
            self, make(load_dataset=load_dataset), make
        )
        return self._train_workers.iterator

    def get_valid_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """Return fairseq's iterator, after ending the last one's workers."""
        self._valid_workers.end()
        self._valid_workers.iterator = super().get_valid_iterator(*args, **kwargs)
        return self._valid_workers.iterator

    def end_loading(self) -> None:
        """End the workers and threads that load batches.

        Python may crash if they still run.
        """
        self._train_workers.end()
        self._valid_workers.end()

    def _prepare_sample(self, sample: Any, is_dummy: bool = False) -> tuple[Any, bool]:
        """Prepare a batch as fairseq does; tell expert layers whether it is a dummy."""
        prepared, is_dummy_batch = super()._prepare_sample(sample, is_dummy)
        if not is_dummy:  # fairseq calls this again for the dummy batch
            self._dummies.append(is_dummy_batch)
        idle = is_dummy or is_dummy_batch
        if idle or self._idle:
            for layer in self._layers:
                layer.idle = idle
            self._idle = idle
        return prepared, is_dummy_batch

    # ---- steps ----

    @metrics.aggregate("train")
    def train_step(self, samples: Any, raise_oom: bool = False) -> Any:
        """Make an update; return fairseq's logging output, or None if it was skipped."""
        with self._comm_log.measured_update():
            self._dummies.clear()
            self._valid_workers.end()
            self._hooks.begin_step()
            self._sparsify_when_due()
            for prices in self._running_prices:
                prices.forget()  # of a skipped update
            self._is_stepping = True
            try:
                # This method has fairseq's `metrics.aggregate` itself, so it calls the function
                # without it.
                output = Trainer.train_step.__wrapped__(self, samples, raise_oom)
            except steps.SkippedUpdate as skipped:
                output = None
                steps.leave_out(self, skipped, self._nonfinite, samples)
            finally:
                self._is_stepping = False
            self.left_out = output is None
            if self._nonfinite is not None:
                self._nonfinite.log(passed=not self.left_out)
        if not self.left_out:
            tell_figures(self.task, self.get_num_updates(), self.cfg.common.log_interval)
        return output

    def _log_oom(self, exc: Any) -> None:
        """Log that a batch is too large; raise a `UserError` if it cannot be left out."""
        super()._log_oom(exc)
        if self._is_stepping or self._exchanges:
            self._memory.add(self.get_num_updates() + 1, exc)

    @property
    def _running_prices(self) -> list[RunningPrices]:
        return [layer.gate.prices for layer in self._layers if isinstance(layer.gate, BaseGate)]

    def set_num_updates(self, num_updates: int) -> None:
        """Set the number of updates; a completed update moves the running prices."""
        if self._is_stepping:
            remember_prices(self._running_prices)
        super().set_num_updates(num_updates)

    def begin_valid_epoch(self, epoch: int) -> None:
        """Begin a validation; raise `Stopped` if a signal ends the run before."""
        self._expect_to_validate()
        self._comm_log.report(self.task, self.get_num_updates())
        super().begin_valid_epoch(epoch)

    def valid_step(self, sample: Any, raise_oom: bool = False) -> Any:
        """Validate a batch (raises `Stopped`).

        A signal can end the run before its last validation.
        """
        self._dummies.clear()
        output = super().valid_step(sample, raise_oom)
        self._expect_to_validate()
        return output

    def _expect_to_validate(self) -> None:
        if self.stopped_by is not None and not self.is_at_end:
            raise stopping.Stopped

    def _aggregate_logging_outputs(
        self, logging_outputs: list[Any], *sums: Any, ignore: bool = False
    ) -> Any:
        """Sum logging outputs over ranks, also those before a dummy batch.

        fairseq drops the latter, but not their gradients. Ranks also agree on a signal, and sum
        their batches' prices unless updates are local.
        """
        real = [
            log for log, dummy in zip(logging_outputs, self._dummies, strict=False) if not dummy
        ]
        if self._slots and ignore and real and all("sample_size" in log for log in real):
            logging_outputs = real
            ignore = False
            sums = (float(sum(log["sample_size"] for log in real)), *sums[1:])
        world_size = self.data_parallel_world_size
        vote = stopping.encode_signal(stopping.received(), world_size)
        shares_update = self._is_stepping and not self.cfg.optimization.use_bmuf
        prices = self._running_prices if shares_update else []
        sums = (*sums, vote, *(prices_of_layer.recorded for prices_of_layer in prices))
        logs, totals = super()._aggregate_logging_outputs(logging_outputs, *sums, ignore=ignore)
        for prices_of_layer in reversed(prices):
            prices_of_layer.recorded = totals.pop()
        # One host synchronisation; fairseq reads the first of the sums soon, too.
        if all(torch.is_tensor(value) for value in totals):
            *numbers, votes = torch.stack(totals).tolist()
        else:
            *numbers, votes = map(float, totals)
        self._agreed_signal = stopping.decode_signal(votes, world_size)
        return logs, numbers

    def _fast_stat_sync_sum(
        self, logging_outputs: list[Any], *sums: Any, ignore: bool = False
    ) -> Any:
        """Sum as fairseq does, in one message."""
        names = list(next(iter(logging_outputs), ()))
        logged: list[Any] = []
        for name in names:
            total = sum(log[name] for log in logging_outputs if name in log)
            if ignore:
                total = torch.zeros_like(total) if torch.is_tensor(total) else 0
            logged.append(total)
        totals = summed([*logged, *sums], self.device, self.data_parallel_process_group)
        logs = [dict(zip(names, totals, strict=False))] if names else []
        return logs, totals[len(names) :]

    @property
    def stopped_by(self) -> signal.Signals | None:
        """The signal that ends the run, or None; the same on all ranks at every step."""
        return stopping.received() if self.data_parallel_world_size == 1 else self._agreed_signal

    def clip_grad_norm(self, clip_norm: float) -> Tensor:
        """Clip by the norm over all ranks; raise `SkippedUpdate` if it is not finite."""
        sharded = [layer.experts for layer in self._layers if layer.experts.placement.is_sharded]
        try:
            if sharded:
                norm: Tensor = steps.clip_all(self.optimizer, sharded, clip_norm)
            else:
                norm = super().clip_grad_norm(clip_norm)
        except OverflowError as error:
            if self.cuda:
                raise
            raise steps.SkippedUpdate from error  # fairseq's handler needs a GPU
        except FloatingPointError as error:
            if self._nonfinite is None:
                raise
            raise UserError(
                f"{error} The newest checkpoint is in `{self.cfg.checkpoint.save_dir}`."
            ) from error
        if self._nonfinite is not None and not torch.isfinite(norm).all():
            raise steps.SkippedUpdate
        return norm

    # ---- saving ----

    def lock_save_dir(self) -> None:
        """Lock the folder while this trainer lives; a collective call (UserError)."""
        if not self.cfg.checkpoint.no_save and not self._is_locked:
            self._lock = saving.lock_together(
                self.cfg.checkpoint.save_dir, self.is_data_parallel_master
            )
            self._is_locked = True

    def save_checkpoint(self, filename: str, extra_state: Any) -> Any:
        """Save a checkpoint, with the state of our additions."""
        if os.path.basename(filename) == "crash.pt" and self._exchanges:
            return None  # the other ranks do not take part, and could not save their experts
        more = {**resuming.plateau_state(self), **best.saved_state(self)}
        if self.ended_validation is not None:
            more[ENDED_VALIDATION] = self.ended_validation
        if self._slots:
            more[GATE_RATE] = self._gate_rate.state_dict()
        if self._nonfinite is not None:
            more["nonfinite"] = self._nonfinite.state_dict()
        extra_state = resuming.with_epoch_position(
            extra_state, self.data_parallel_world_size, self._drawn
        )
        extra_state = {**extra_state, **more}
        return saving.save_checkpoint_parts(self, filename, extra_state, self._exchanges)

    def consolidate_optimizer(self) -> None:
        """Gather the states of optimizer and task; called on all ranks before a save."""
        fails = sys.exc_info()[0] is not None  # the other ranks do not take part then
        if not fails:
            self._hooks.gather()
        if not fails or not self._exchanges:
            super().consolidate_optimizer()

    def expect_finite_weights(self, restored: str | None = None) -> None:
        """Raise a `UserError` if weights are not finite; a collective call."""
        if self._nonfinite is not None:
            steps.expect_finite_weights(self, restored, self._exchanges)

    # ---- resuming ----

    def load_checkpoint(
        self,
        filename: str,
        reset_optimizer: bool = False,
        reset_lr_scheduler: bool = False,
        optimizer_overrides: Any = None,
        reset_meters: bool = False,
    ) -> Any:
        """Load a checkpoint: each rank its part; a completed run begins no epoch."""
        if stopping.is_training_command():
            self.lock_save_dir()
        best.forget()
        resuming.sparsify_for(self, filename)
        resets = reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters
        with resuming.reading_checkpoint(self, filename, goes_on=not reset_optimizer) as context:
            with with_option(self.cfg.ema, "store_ema", False):
                extra_state = super().load_checkpoint(filename, *resets)
            if extra_state is not None:
                averages.restore(self, extra_state)
                self.expect_finite_weights(restored=filename)
                if self._nonfinite is not None and not reset_meters:
                    self._nonfinite.load_state_dict(extra_state.get("nonfinite", {}))
                if not reset_optimizer:
                    self._gate_rate.load_state_dict(extra_state.get(GATE_RATE, {}))
                    _, state = context.loaded[-1]
                    extra_state = resuming.restore_the_rest(
                        self, state, reset_lr_scheduler, reset_meters
                    )
                begin = f"continues after update {self._num_updates}"
                if reset_optimizer:
                    begin = "starts from the weights"
                logger.info(f"{begin} of {filename}", extra=screen.FOR_SCREEN)
        starts_over = resuming.starts_over(self.cfg.checkpoint, reset_optimizer)
        resuming.begin_no_epoch_if_ended(
            self, extra_state, goes_on=not (reset_optimizer or starts_over)
        )
        self._restored_draw = None if starts_over else resuming.drawn_in_epoch(extra_state)
        extra_state = resuming.adapt_epoch_position(extra_state, self.data_parallel_world_size)
        self.ended_validation = None
        if extra_state and not starts_over and extra_state.get(ENDED_VALIDATION):
            position = {"position": extra_state["train_iterator"]}
            self.ended_validation = extra_state[ENDED_VALIDATION] | position
        return extra_state
