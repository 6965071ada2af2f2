"""fairseq's trainer, whose checkpoints are complete, of all processes, and enough to go on from."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from fairseq_mtmoe.checkpoints import loading
from fairseq_mtmoe.checkpoints.fallback import suggested_fallback
from fairseq_mtmoe.errors import UserError
from fairseq_mtmoe.protocols import GathersBeforeSaving
from fairseq_mtmoe.training import epoch_position, failures, loop, nonfinite, resuming, run_lock, saving, screen
from fairseq_mtmoe.training.distributed_trainer import DistributedTrainer
from fairseq_mtmoe.training.overriding import with_option

logger = logging.getLogger(__name__)


class ResumableTrainer(DistributedTrainer):
    """Saves what a run needs to go on as if nothing had been, and goes on from it.

    Raises:
        UserError: the file to go on from is none.
    """

    _nonfinite: nonfinite.NonfiniteUpdates | None

    def __init__(self, cfg: Any, task: Any, model: Any, criterion: Any, quantizer: Any = None) -> None:
        super().__init__(cfg, task, model, criterion, quantizer)
        self._is_locked = False  # the folder, by the first process for all
        self._lock: Any = None
        self.owed_validation: dict[str, Any] | None = None  # see `loop.py`
        self._owed: loop.TrainingPosition | None = (
            None  # such a validation, of the checkpoint from which the run goes on
        )
        self._drawn: int | None = None  # for which epoch batches were drawn, see `epoch_position.py`
        self._restored_draw: int | None = None
        resuming.expect_what_is_asked_for(self.cfg.checkpoint, self.checkpoint_suffix)

    # ---- saving ----

    def lock_save_dir(self) -> None:
        """Keep other trainings out of the folder, as long as this trainer is there; all processes call it together.

        Raises:
            UserError: another training uses it, or another process is lost.
        """
        if not self.cfg.checkpoint.no_save and not self._is_locked:
            with failures.naming_lost_processes():
                self._lock = run_lock.lock_together(self.cfg.checkpoint.save_dir, self.is_data_parallel_master)
            self._is_locked = True

    def save_checkpoint(self, filename: str, extra_state: Any) -> Any:
        """As fairseq's.

        Raises:
            UserError: another process is lost.
        """
        if os.path.basename(filename) == "crash.pt" and self._exchanges:
            return None  # the others are not here to save their experts
        extra_state = epoch_position.counted(extra_state, self.data_parallel_world_size, self._drawn)
        if self._nonfinite is not None:
            extra_state = {**extra_state, "nonfinite": self._nonfinite.state_dict()}
        if self.owed_validation is not None:
            extra_state = {**extra_state, loop.OWED: self.owed_validation}
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
        if self._nonfinite is None or nonfinite.are_finite(self.get_model().parameters(), self._exchanges):
            return
        if restored is not None:
            raise UserError(
                f"`{restored}` must hold weights that are finite, but some are not, and training would leave out every "
                f"batch; use an older one with `--restore-file`{suggested_fallback(restored)}."
            )
        raise UserError(
            f"The weights are not finite after update {self.get_num_updates()}, and are not saved: "
            f"{nonfinite.advice(self.cfg.checkpoint.save_dir)}."
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
        if loop.is_training_command():
            self.lock_save_dir()
        differing = resuming.naming_what_differs(self, filename, goes_on=not reset_optimizer)
        with failures.naming_lost_processes(), differing, saving.reading_shares(self):
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
        self._restored_draw = None if starts_over else epoch_position.drawn_in(extra_state)
        extra_state = epoch_position.adapted(extra_state, self.data_parallel_world_size)
        goes_on = not (reset_optimizer or reset_lr_scheduler or reset_meters or starts_over)
        self._owed = loop.owed_by(extra_state) if goes_on else None
        return extra_state

    def _begin_no_epoch_if_complete(self) -> None:
        limit = self.cfg.optimization.max_update
        if limit and self.get_num_updates() >= limit:
            made = f"the run has made its {self.get_num_updates()} updates (--max-update {limit})"
            logger.info(made, extra=screen.FOR_SCREEN)
            self.cfg.optimization.max_epoch = -1

    def lr_step(self, epoch: int, val_loss: float | None = None) -> Any:
        """As fairseq's. With this it ends to resume a run, which then first makes up for a validation that it owes."""
        lr = super().lr_step(epoch, val_loss)
        if self._owed is not None:
            place, self._owed = self._owed, None
            loop.make_up_for(place, self)
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
