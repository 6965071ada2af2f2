"""Updates whose loss or gradients are not finite: skipped, counted, and the end of the run when they do not stop.

The norm of all gradients is the same number in every process, so all of them skip the same updates. An update from
finite gradients can still make weights that are not finite; these are neither saved nor trained on.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.nan_detector import NanDetector
from torch import Tensor, nn
from torch import distributed as dist

from fairseq_mtmoe.checkpoints.fallback import newest_good_in
from fairseq_mtmoe.errors import UserError

logger = logging.getLogger(__name__)


class SkippedUpdate(Exception):
    """Raised between the backward pass and the optimizer's step, to leave the step out.

    `overflow` is what the scaler of half-precision gradients says when their scale was too large; None otherwise.
    """

    def __init__(self, overflow: OverflowError | None = None) -> None:
        super().__init__()
        self.overflow = overflow


class NonfiniteUpdates:
    """Counts them, in all and in a row, and ends the run after `limit` in a row; with a limit of 0 at the first."""

    def __init__(self, limit: int, save_dir: str) -> None:
        self.limit = limit
        self.save_dir = save_dir
        self.total = 0
        self.in_a_row = 0

    def add(self, update: int) -> None:
        """Count one in the place of update number `update`.

        Raises:
            UserError: there were `limit` in a row.
        """
        self.total += 1
        self.in_a_row += 1
        if self.in_a_row >= self.limit:
            times = f"{self.in_a_row} times in a row " if self.in_a_row > 1 else ""
            raise UserError(
                f"The loss or its gradients were not finite {times}in the place of update {update} "
                f"(`--max-nonfinite {self.limit}`): {advice(self.save_dir)}."
            )
        logger.warning(f"update {update}: loss or gradients are not finite; left this batch out ({self.total} so far)")

    def log(self, passed: bool) -> None:
        """Log the total once there is one; an update that `passed` ends a row."""
        if passed:
            self.in_a_row = 0
        if self.total:
            metrics.log_scalar("nonfinite_updates", self.total, weight=0, priority=510, round=0)

    def state_dict(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"total": self.total, "in_a_row": self.in_a_row}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on counting from what a checkpoint kept; one of before 0.1.1 kept nothing."""
        self.total, self.in_a_row = state.get("total", 0), state.get("in_a_row", 0)


def advice(save_dir: str) -> str:
    """The end of a sentence about a training that diverged: what to change, and which checkpoint to go on from."""
    newest = newest_good_in(save_dir)
    if newest is None:
        rest = "start again; no checkpoint with finite weights was saved"
    elif newest.name == "checkpoint_last.pt":
        rest = f"go on from `{newest}`, saved before"
    else:
        rest = f"go on with `--restore-file {newest}`, the newest checkpoint whose weights are finite"
    return f"lower `--lr`, raise `--warmup-updates` or set `--clip-norm`, and {rest}"


def are_finite(weights: Iterable[Tensor], in_all_processes: bool) -> bool:
    """Whether all elements of all weights are finite, in this process or in all of them; waits for a GPU once.

    Args:
        in_all_processes: then every process must call it together, and each gets the same answer.
    """
    norms = torch._foreach_norm([weight.detach() for weight in weights if weight.numel()], math.inf)
    spoiled = (~torch.stack([norm.float() for norm in norms]).isfinite()).any().float()
    if in_all_processes:
        dist.all_reduce(spoiled)
    return not spoiled.item()


def forget_gradients(optimizer: Any) -> None:
    """Drop the gradients, and what a half-precision optimizer without a scaler was going to multiply them by."""
    optimizer.zero_grad()
    if getattr(optimizer, "scaler", None) is None and hasattr(optimizer, "_multiply_factor"):
        optimizer._multiply_factor = 1.0


def search(trainer: Any, samples: list[Any]) -> None:
    """Log which modules' outputs are not finite, as fairseq does; its search backward fails on our outputs."""
    trainer._set_seed()
    with NanDetector(trainer.get_model(), backward=False):
        for sample in samples:
            prepared, _ = trainer._prepare_sample(sample)
            update = trainer.get_num_updates()
            trainer.task.train_step(prepared, trainer.model, trainer.criterion, trainer.optimizer, update)


def show_in_gradients(criterion: nn.Module, inputs: Any, output: Any) -> None:
    """A forward hook of the criterion: a loss that is not finite gives gradients that are not, without waiting for it.

    Otherwise an infinite sum can leave its finite terms' gradients behind.
    """
    loss = output[0]
    if isinstance(loss, Tensor) and loss.requires_grad:
        poison = (loss.detach() * 0).sum()  # 0, or NaN
        loss.register_hook(lambda grad: grad + poison.to(grad.dtype))
