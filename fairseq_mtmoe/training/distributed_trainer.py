"""fairseq's trainer in several processes, on CPUs as on GPUs, whose checkpoints are complete and enough to go on from.

With `--ddp-backend pytorch_ddp`, its default, fairseq names a GPU for modules on the CPU, which torch refuses; and the
norm of all gradients goes to a GPU wherever there is one, where it cannot be multiplied with gradients on the CPU.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
from fairseq import utils
from fairseq.distributed import DistributedTimeoutWrapper, ModuleProxyWrapper
from fairseq.optim import AMPOptimizer, FairseqBMUF, FP16Optimizer, MemoryEfficientFP16Optimizer, lr_scheduler
from fairseq.trainer import Trainer
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType, register_ddp_comm_hook
from torch.nn.parallel import DistributedDataParallel

from fairseq_mtmoe.checkpoints import loading
from fairseq_mtmoe.checkpoints.last_good import suggested_fallback
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.moe import MoELayer
from fairseq_mtmoe.optim.loaded_state import check_when_loading
from fairseq_mtmoe.optim.optimizer_state import trained_parameters
from fairseq_mtmoe.protocols import GathersBeforeSaving
from fairseq_mtmoe.slots import expert_slots
from fairseq_mtmoe.training import failures, resuming, saving, screen, steps, stopping, zero_sharding
from fairseq_mtmoe.training.option_check import with_option

logger = logging.getLogger(__name__)

_OPTIONS = ("broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view")


class DistributedTrainer(Trainer):
    """fairseq's trainer of models with experts in several processes; it saves all that a run needs to go on.

    Raises:
        UserError: `--zero-sharding` is for gradients that are not flattened; the file to go on from is none.
    """

    _wrapped_model: Any
    _wrapped_criterion: Any
    _nonfinite: steps.NonfiniteUpdates | None

    def __init__(self, cfg: Any, task: Any, model: Any, criterion: Any, quantizer: Any = None) -> None:
        self._slots = list(expert_slots(model).values())
        super().__init__(cfg, task, model, criterion, quantizer)
        self._is_locked = False  # the folder, by the first process for all
        self._lock: Any = None
        self.pending_validation: dict[str, Any] | None = None  # that a signal ended, for the next checkpoint
        self._pending: stopping.TrainingPosition | None = None  # that of the checkpoint from which the run goes on
        self._drawn: int | None = None  # the epoch for which batches were drawn, see `resuming.py`
        self._restored_draw: int | None = None
        resuming.expect_what_is_asked_for(self.cfg.checkpoint, self.checkpoint_suffix)

    # ---- experts ----

    @property
    def _layers(self) -> list[MoELayer]:
        return [slot.moe for slot in self._slots if slot.moe is not None]

    @property
    def _exchanges(self) -> bool:
        """Whether the steps of this process are waited for by others, whatever happens in them."""
        return any(layer.experts.placement.is_sharded for layer in self._layers)

    # ---- the wrappers for several processes ----

    @property
    def model(self) -> Any:
        """As fairseq's: the model in its wrapper for several processes."""
        if self._wrapped_model is None and self._is_wrapped_on_cpu:
            self._wrapped_model = self._on_cpu(self._model)
        return super().model

    @property
    def criterion(self) -> Any:
        """As fairseq's: the criterion, in such a wrapper if it has parameters."""
        if self._wrapped_criterion is None and self._is_wrapped_on_cpu and utils.has_parameters(self._criterion):
            self._wrapped_criterion = self._on_cpu(self._criterion)
        return super().criterion

    @property
    def _is_wrapped_on_cpu(self) -> bool:
        by_torch = self.cfg.distributed_training.ddp_backend in ("c10d", "pytorch_ddp")
        return by_torch and self.use_distributed_wrapper and self.device.type == "cpu"

    def _on_cpu(self, module: nn.Module) -> Any:
        return data_parallel_on_cpu(module, self.cfg.distributed_training, self.data_parallel_process_group)

    # ---- the optimizer ----

    def _build_optimizer(self) -> None:
        """As fairseq's; the optimizer's state is spread over the processes by `zero_sharding`."""
        distributed = self.cfg.distributed_training
        spreads = distributed.zero_sharding == "os"
        if spreads:
            zero_sharding.refuse_flat_gradients(self.cfg.common)
        with with_option(distributed, "zero_sharding", "none"):
            super()._build_optimizer()
        if spreads:
            zero_sharding.shard(self._optimizer, self.data_parallel_process_group)
            self._lr_scheduler = lr_scheduler.build_lr_scheduler(self.cfg.lr_scheduler, self._optimizer)
            self._lr_scheduler.step_update(0)
        plain: Any = unwrapped_optimizer(self._optimizer)
        for inner in getattr(plain.optimizer, "optimizers", {"": plain}).values():  # several in fairseq's `composite`
            check_when_loading(inner.optimizer, self._names_of_trained)
        if self.device.type == "cpu" and torch.cuda.is_available():
            plain.clip_grad_norm = functools.partial(clip_on_cpu, plain)

    def _names_of_trained(self) -> list[str]:
        modules = {"": self._model, "criterion.": self._criterion}
        return [at + name for at, module in modules.items() for name, _ in trained_parameters(module)]

    # ---- saving ----

    def lock_save_dir(self) -> None:
        """Keep other trainings out of the folder, as long as this trainer is there; all processes call it together.

        Raises:
            UserError: another training uses it, or another process is lost.
        """
        if not self.cfg.checkpoint.no_save and not self._is_locked:
            with failures.naming_lost_processes():
                self._lock = saving.lock_together(self.cfg.checkpoint.save_dir, self.is_data_parallel_master)
            self._is_locked = True

    def save_checkpoint(self, filename: str, extra_state: Any) -> Any:
        """As fairseq's.

        Raises:
            UserError: another process is lost.
        """
        if os.path.basename(filename) == "crash.pt" and self._exchanges:
            return None  # the others are not here to save their experts
        extra_state = resuming.with_epoch_position(extra_state, self.data_parallel_world_size, self._drawn)
        if self._nonfinite is not None:
            extra_state = {**extra_state, "nonfinite": self._nonfinite.state_dict()}
        if self.pending_validation is not None:
            extra_state = {**extra_state, stopping.PENDING: self.pending_validation}
        with failures.naming_lost_processes():
            if self._exchanges:
                return saving.save_leading(self, filename, extra_state)
            return saving.save_alone(self, filename, extra_state)

    def consolidate_optimizer(self) -> None:
        """As fairseq's, which calls it in all processes before it saves; so the task can gather what it saves, too.

        But not for an error's sake: the other processes, who would have to help, do not know of it.
        """
        if sys.exc_info()[0] is None and isinstance(self.task, GathersBeforeSaving):
            self.task.gather()
        if sys.exc_info()[0] is None or not self._exchanges:
            super().consolidate_optimizer()

    def expect_finite_weights(self, restored: str | None = None) -> None:
        """Refuse to save weights that are not finite, or to train on such; all processes must call it together.

        Args:
            restored: the checkpoint that they come from, or None if an update made them.

        Raises:
            UserError: some weights of this process or another are not finite.
        """
        if self._nonfinite is None or steps.are_finite(self.get_model().parameters(), self._exchanges):
            return
        if restored is not None:
            raise UserError(
                f"`{restored}` must hold weights that are finite, but some are not, and training would leave out every "
                f"batch; use an older one with `--restore-file`{suggested_fallback(restored)}."
            )
        raise UserError(
            f"The weights are not finite after update {self.get_num_updates()}, and are not saved: "
            f"{steps.advice(self.cfg.checkpoint.save_dir)}."
        )

    # ---- going on ----

    def load_checkpoint(
        self, filename: str, reset_optimizer: bool = False, reset_lr_scheduler: bool = False,
        optimizer_overrides: Any = None, reset_meters: bool = False,
    ) -> Any:  # fmt: skip
        """As fairseq's, which asks only after an update whether there were enough: a complete run makes no other.

        Raises:
            UserError: another process is lost, or the checkpoint is of another model, criterion or optimizer.
        """
        if stopping.is_training_command():
            self.lock_save_dir()
        differing = resuming.naming_what_differs(self, filename, goes_on=not reset_optimizer)
        with failures.naming_lost_processes(), differing, resuming.reading_shares(self):
            extra_state = super().load_checkpoint(
                filename, reset_optimizer, reset_lr_scheduler, optimizer_overrides, reset_meters
            )
            if extra_state is not None and self._nonfinite is not None:
                self.expect_finite_weights(restored=filename)
                if not reset_meters:
                    self._nonfinite.load_state_dict(extra_state.get("nonfinite", {}))
        if extra_state is not None:
            begins = "begins with the weights" if reset_optimizer else f"goes on after update {self.get_num_updates()}"
            logger.info(f"{begins} of {filename}", extra=screen.FOR_SCREEN)
            before = None if reset_optimizer else resuming.another_optimizer(self.cfg, filename)
            if before is not None:
                own = self.cfg.optimizer._name
                logger.info(f"--optimizer {own} goes on with the moments of {before}", extra=screen.FOR_SCREEN)
        self._begin_no_epoch_if_complete()
        options = self.cfg.checkpoint
        fine_tunes = reset_optimizer and not options.reset_optimizer  # fairseq then resets everything, unasked
        starts_over = options.reset_dataloader or fine_tunes
        self._restored_draw = None if starts_over else resuming.drawn_in_epoch(extra_state)
        extra_state = resuming.adapt_epoch_position(extra_state, self.data_parallel_world_size)
        goes_on = not (reset_optimizer or reset_lr_scheduler or reset_meters or starts_over)
        self._pending = stopping.pending_of(extra_state) if goes_on else None
        return extra_state

    def _begin_no_epoch_if_complete(self) -> None:
        limit = self.cfg.optimization.max_update
        if limit and self.get_num_updates() >= limit:
            made = f"the run has made its {self.get_num_updates()} updates (--max-update {limit})"
            logger.info(made, extra=screen.FOR_SCREEN)
            self.cfg.optimization.max_epoch = -1

    def lr_step(self, epoch: int, val_loss: float | None = None) -> Any:
        """As fairseq's. With this it ends to resume a run, which then first makes a pending validation."""
        lr = super().lr_step(epoch, val_loss)
        if self._pending is not None:
            position, self._pending = self._pending, None
            stopping.run_pending(position, self)
            lr = self.get_lr()
        return lr

    def _build_ema(self) -> None:
        """As fairseq's, which would read `--ema-seed-model` in a way of its own."""
        options = self.cfg.ema
        with with_option(options, "ema_seed_model", None):
            super()._build_ema()
        if self._ema is not None and options.ema_seed_model is not None:
            self._ema.get_model().load_state_dict(loading.load_ema(options.ema_seed_model)["model"], strict=True)
            if options.ema_fp32:
                self._ema.build_fp32_params()


def data_parallel_on_cpu(module: nn.Module, options: Any, group: dist.ProcessGroup) -> Any:
    """A module on the CPU in torch's wrapper for several processes, with fairseq's options of it."""
    wrapped = DistributedDataParallel(module, process_group=group, **{name: options[name] for name in _OPTIONS})
    if options.ddp_comm_hook == "fp16":
        register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, wrapped)
    proxy = ModuleProxyWrapper(wrapped)
    return DistributedTimeoutWrapper(proxy, options.heartbeat_timeout) if options.heartbeat_timeout > 0 else proxy


def unwrapped_optimizer(optimizer: Any) -> Any:
    """The optimizer inside those that fairseq wraps around it, for half precision and for local updates."""
    while True:
        if isinstance(optimizer, FairseqBMUF):
            optimizer = optimizer._optimizer
        elif isinstance(optimizer, FP16Optimizer | AMPOptimizer):
            optimizer = optimizer.fp32_optimizer
        elif isinstance(optimizer, MemoryEfficientFP16Optimizer):
            optimizer = optimizer.wrapped_optimizer
        else:
            return optimizer


def clip_on_cpu(optimizer: Any, max_norm: float, aggregate_norm_fn: Any = None) -> Tensor:
    """As a fairseq optimizer's `clip_grad_norm`, and nothing of it goes to a GPU.

    Scales all gradients so that the norm of all but experts' is at most `max_norm` (0: not at all).

    Returns:
        that norm.
    """
    parameters: Iterable[nn.Parameter] = optimizer.params
    given = [(parameter, parameter.grad.detach()) for parameter in parameters if parameter.grad is not None]
    norms = [
        torch.norm(gradient, p=2, dtype=torch.float32)
        for parameter, gradient in given
        if not hasattr(parameter, "expert")
    ]
    if not norms:
        return torch.tensor(0.0)
    norm: Tensor = torch.stack(norms).norm()
    if aggregate_norm_fn is not None:
        norm = aggregate_norm_fn(norm)
    if max_norm > 0:
        torch._foreach_mul_([gradient for _, gradient in given], (max_norm / (norm + 1e-6)).clamp_(max=1))
    return norm
