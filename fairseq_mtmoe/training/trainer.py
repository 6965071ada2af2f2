"""fairseq's trainer, with what models with experts need of it.

It takes the place of fairseq's own. In one process, with a model without our options, it is fairseq's in all it does.
"""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from torch import Tensor

from fairseq_mtmoe.checkpoints.key_maps import GATE_RATE
from fairseq_mtmoe.errors import UserError, raise_invalid
from fairseq_mtmoe.moe import BaseGate, RunningPrices, forget_prices, remember_prices
from fairseq_mtmoe.protocols import CountsUpdates, RunObserver, SamplesByUpdates
from fairseq_mtmoe.slots import expert_slots
from fairseq_mtmoe.slots.slot import unwrapped
from fairseq_mtmoe.sparsify.in_training import maybe_sparsify, sparsify_average
from fairseq_mtmoe.training import failures, metrics_hook, screen, stopping
from fairseq_mtmoe.training.distributed_trainer import DistributedTrainer
from fairseq_mtmoe.training.metrics_hook import ExpertCommLog
from fairseq_mtmoe.training.option_check import changed_options
from fairseq_mtmoe.training.steps import (
    GateRate,
    NonfiniteUpdates,
    SkippedUpdate,
    clip_all,
    forget_gradients,
    search,
    show_in_gradients,
)
from fairseq_mtmoe.training.unsupported import refuse_what_cannot_work, warn_of_what_does_nothing, will_exchange

logger = logging.getLogger(__name__)


class SparseTrainer(DistributedTrainer):
    """Trains models whose experts are in several processes, and models that become sparse in the middle of a run.

    Raises:
        UserError: an option is out of its range, or cannot work with experts in several processes; the file to go on
            from is none.
    """

    def __init__(self, cfg: Any, task: Any, model: Any, criterion: Any, quantizer: Any = None) -> None:
        self._wrapped_dense = False
        self._idle = False
        self._gate_rate = self._rate_of_gates(cfg, model)
        self._is_stepping = False
        self._trained_on, self._validated_on = DataloaderWorkers(), DataloaderWorkers()
        self._dummies: list[bool] = []  # of the batches of the step under way
        super().__init__(cfg, task, model, criterion, quantizer)
        screen.follow(self)
        metrics_hook.follow(task)
        if isinstance(task, RunObserver):
            task.begins(changed_options(cfg), self.device, model)
        refuse_what_cannot_work(self.cfg, model)
        warn_of_what_does_nothing(self.cfg, model)
        self._timeout = self._number("distributed_timeout", least=1)
        if failures.several_processes() and will_exchange(model, self.data_parallel_world_size):
            failures.between_hosts()
        self._limit_waiting()
        self._nonfinite = self._count_nonfinite()
        self.left_out = False  # whether the last step made no update
        self._agreed_signal: signal.Signals | None = None
        self._comm_log = ExpertCommLog(expert_slots(model), getattr(self.cfg.model, "log_expert_comm", False))
        if self._nonfinite is not None:
            self.get_criterion().register_forward_hook(show_in_gradients)

    def _number(self, name: str, least: int) -> int | None:
        value: int | None = getattr(self.cfg.model, name, None)
        if value is not None and value < least:
            raise_invalid(f"--{name.replace('_', '-')}", f"at least {least}", value)
        return value

    def _count_nonfinite(self) -> NonfiniteUpdates | None:
        """None where fairseq deals with such updates itself, or where processes make updates of their own."""
        limit, cfg = self._number("max_nonfinite", least=0), self.cfg
        own_way = cfg.common.amp or cfg.optimization.use_bmuf or cfg.distributed_training.ddp_backend == "slowmo"
        return None if limit is None or own_way or self.tpu else NonfiniteUpdates(limit, cfg.checkpoint.save_dir)

    def _limit_waiting(self) -> None:
        if self._timeout is not None:
            failures.set_timeout(self._timeout)

    # ---- the model ----

    @property
    def model(self) -> Any:
        """The model in its wrapper for several processes, which is made anew when the model became sparse."""
        if self._wrapped_model is not None and self._wrapped_dense and not self._awaits_experts:
            self._wrapped_model = None
            gc.collect()  # the old wrapper's hooks on the parameters go with it
        self._wrapped_dense = self._awaits_experts
        return super().model

    @property
    def _awaits_experts(self) -> bool:
        """Whether the model has places for experts, and none yet: it trains dense at first."""
        return bool(self._slots) and not self._layers

    def _build_optimizer(self) -> None:
        """As fairseq's; gates may learn at a rate of their own."""
        super()._build_optimizer()
        self._gate_rate.follow(self._optimizer)

    def _rate_of_gates(self, cfg: Any, model: Any) -> GateRate:
        # Fully sharded, gates are parts of a nameless vector.
        is_sharded = cfg.distributed_training.ddp_backend == "fully_sharded"
        usual = 1.0 if is_sharded else getattr(unwrapped(model), "gate_lr_factor", 1.0)
        return GateRate(getattr(cfg.model, "gate_lr_factor", None), usual, lambda: self._layers)

    def save_checkpoint(self, filename: str, extra_state: Any) -> Any:
        """As fairseq's.

        Raises:
            UserError: another process is lost.
        """
        rate = {GATE_RATE: self._gate_rate.state_dict()} if self._slots else {}
        return super().save_checkpoint(filename, {**extra_state, **rate})

    def load_checkpoint(self, filename: str, reset_optimizer: bool = False, *others: Any, **more: Any) -> Any:
        """As fairseq's; gates go on at the rate that they had.

        Raises:
            UserError: another process is lost, or the checkpoint is of another model, criterion or optimizer.
        """
        extra_state = super().load_checkpoint(filename, reset_optimizer, *others, **more)
        if extra_state is not None and not reset_optimizer:
            self._gate_rate.load_state_dict(extra_state.get(GATE_RATE))
        return extra_state

    def _sparsify_when_due(self) -> None:
        if not self._awaits_experts:
            return
        model, update = self.get_model(), self.get_num_updates()
        self._set_seed()  # the gates are drawn: alike in all processes, and in a resumed run
        if not maybe_sparsify(model, self.optimizer, update):
            return
        if self._ema is not None:
            sparsify_average(self._ema, model)
        self._idle = False
        self._limit_waiting()  # the exchange of tokens made new groups of processes
        if isinstance(self.task, RunObserver):
            self.task.sparsified(update, max(layer.gate.num_experts for layer in self._layers), model)

    def _prepare_sample(self, sample: Any, is_dummy: bool = False) -> tuple[Any, bool]:
        """As fairseq's; the expert layers learn whether the batch is another one's, which only keeps others company."""
        prepared, is_dummy_batch = super()._prepare_sample(sample, is_dummy)
        if not is_dummy:  # fairseq calls this again for the batch that it takes instead
            self._dummies.append(is_dummy_batch)
        idle = is_dummy or is_dummy_batch
        if idle or self._idle:
            for layer in self._layers:
                layer.idle = idle
            self._idle = idle
        return prepared, is_dummy_batch

    # ---- data ----

    def get_train_iterator(self, epoch: int, combine: bool = True, load_dataset: bool = True, **kwargs: Any) -> Any:
        """As fairseq's; the first one of a run that goes on has the batches of the run's first start.

        A task whose sampling goes by updates learns how many were made.
        """
        if load_dataset:
            draws_once = not self.cfg.dataset.update_epoch_batch_itr and not self.task.has_sharded_data("train")
            epoch, self._restored_draw = self._restored_draw or epoch, None
            self._drawn = epoch if draws_once else None
        if isinstance(self.task, SamplesByUpdates):
            self.task.num_updates = self.get_num_updates()
        self._trained_on.end()
        return self._trained_on.add(super().get_train_iterator(epoch, combine, load_dataset, **kwargs))

    def get_valid_iterator(self, *args: Any, **kwargs: Any) -> Any:
        """As fairseq's."""
        self._validated_on.end()
        return self._validated_on.add(super().get_valid_iterator(*args, **kwargs))

    # ---- steps ----

    @metrics.aggregate("train")
    def train_step(self, samples: Any, raise_oom: bool = False) -> Any:
        """As fairseq's; None where the update was left out.

        Raises:
            UserError: too many updates in a row were not finite, or another process is lost.
        """
        with failures.naming_lost_processes(), self._comm_log.update(), self._moving_prices():
            self._dummies.clear()
            self._validated_on.end()
            if isinstance(self.task, CountsUpdates):
                self.task.begin_step()
            self._sparsify_when_due()
            # Whoever runs out of memory must say so where others wait for its tokens, and not make half a step.
            raise_oom = raise_oom or self._exchanges
            try:
                # fairseq's step without its decorator, which is around this one, and would forget that a step is over
                # when a `SkippedUpdate` passes.
                output = Trainer.train_step.__wrapped__(self, samples, raise_oom)
            except SkippedUpdate as skipped:
                output = None
                self._skip(skipped, samples)
            self.left_out = output is None
            if self._nonfinite is not None:
                self._nonfinite.log(passed=not self.left_out)
        return output

    @contextmanager
    def _moving_prices(self) -> Iterator[None]:
        """Around a step: the running prices of BASE layers move with an update that it makes, and with nothing else."""
        forget_prices(self._running_prices)  # of an update that was left out
        self._is_stepping = True
        try:
            yield
        finally:
            self._is_stepping = False

    @property
    def _running_prices(self) -> list[RunningPrices]:
        return [layer.gate.prices for layer in self._layers if isinstance(layer.gate, BaseGate)]

    def set_num_updates(self, num_updates: int) -> None:
        """As fairseq's; an update that was made moves the running prices of BASE layers."""
        if self._is_stepping:
            alone = self.data_parallel_world_size == 1 or self.cfg.optimization.use_bmuf  # whose updates are local
            remember_prices(self._running_prices, None if alone else self.data_parallel_process_group)
        super().set_num_updates(num_updates)

    def begin_valid_epoch(self, epoch: int) -> None:
        """As fairseq's.

        Raises:
            Stopped: a signal ends the run.
        """
        if self.stopped_by is not None:
            raise stopping.Stopped
        self._comm_log.report(self.task, self.get_num_updates())
        super().begin_valid_epoch(epoch)

    def valid_step(self, sample: Any, raise_oom: bool = False) -> Any:
        """As fairseq's.

        Raises:
            UserError: another process is lost.
            Stopped: a signal ends the run.
        """
        with failures.naming_lost_processes():
            self._dummies.clear()
            output = super().valid_step(sample, raise_oom or self._exchanges)
        if self.stopped_by is not None:
            raise stopping.Stopped
        return output

    def _aggregate_logging_outputs(self, logging_outputs: list[Any], *sums: Any, ignore: bool = False) -> Any:
        """As fairseq's, which with `--update-freq` forgets the batches before a dummy, but not their gradients.

        What the processes tell each other here anyway also says which of them got a signal.
        """
        real = [log for log, dummy in zip(logging_outputs, self._dummies, strict=False) if not dummy]
        if self._slots and ignore and real and all("sample_size" in log for log in real):
            logging_outputs, ignore = real, False
            sums = (float(sum(log["sample_size"] for log in real)), *sums[1:])
        world_size = self.data_parallel_world_size
        vote = stopping.encode_signal(stopping.received(), world_size)
        logs, found = super()._aggregate_logging_outputs(logging_outputs, *sums, vote, ignore=ignore)
        # One wait for a GPU: fairseq, too, looks at the first of the sums soon.
        tensors = all(torch.is_tensor(value) for value in found)
        *numbers, votes = torch.stack(found).tolist() if tensors else map(float, found)
        self._agreed_signal = stopping.decode_signal(votes, world_size)
        return logs, numbers

    @property
    def stopped_by(self) -> signal.Signals | None:
        """The signal that ends the run, if there is one, in all processes from the same step on."""
        return stopping.received() if self.data_parallel_world_size == 1 else self._agreed_signal

    def clip_grad_norm(self, clip_norm: float) -> Tensor:
        """As fairseq's, over the experts of all processes.

        Raises:
            SkippedUpdate: the norm is not finite; the parameters must stay as they are.
            UserError: the scale of half-precision gradients fell to its minimum.
        """
        try:
            sharded = [layer.experts for layer in self._layers if layer.experts.placement.is_sharded]
            norm: Tensor = (
                clip_all(self.optimizer, sharded, clip_norm) if sharded else super().clip_grad_norm(clip_norm)
            )
        except OverflowError as error:
            if self.cuda:
                raise
            raise SkippedUpdate(error) from None  # fairseq goes on with a tensor on a GPU
        except FloatingPointError as error:
            if self._nonfinite is not None:
                raise UserError(f"{error} The newest checkpoint is in `{self.cfg.checkpoint.save_dir}`.") from error
            raise
        if self._nonfinite is not None and not torch.isfinite(norm).all():
            raise SkippedUpdate
        return norm

    def _skip(self, skipped: SkippedUpdate, samples: list[Any]) -> None:
        forget_gradients(self.optimizer)
        metrics.log_stop_time("train_wall")
        if skipped.overflow is None:
            assert self._nonfinite is not None
            if self._nonfinite.limit == 0:
                search(self, samples)
            self._nonfinite.add(self.get_num_updates() + 1)
            return
        logger.info(f"NOTE: gradient overflow detected, ignoring gradient, {skipped.overflow}")
        metrics.log_scalar("loss_scale", self.optimizer.scaler.loss_scale, priority=700, round=4, weight=0)


class DataloaderWorkers:
    """The worker processes that load an epoch's batches, ended when it is over.

    fairseq's iterator of an epoch refers to itself, and so keeps its workers until Python looks for cycles, which may
    be many epochs later. Those of a validation stay until the next one.
    """

    def __init__(self) -> None:
        self._iterators: list[Any] = []

    def add(self, iterator: Any) -> Any:
        """Remember an iterator over epochs; returns it."""
        if not any(known is iterator for known in self._iterators):
            self._iterators.append(iterator)
        return iterator

    def end(self) -> None:
        """End the workers of all epochs that were begun so far; how many batches they had is still known."""
        for iterator in self._iterators:
            for name in ("_cur_epoch_itr", "_current_epoch_iterator"):  # of fairseq's two kinds of iterators
                counting: Any = getattr(iterator, name, None)
                if hasattr(counting, "_itr"):
                    counting._itr = iter(())
        self._iterators.clear()
