"""Updates whose loss or gradients are not finite: skipped, counted, and the end of the run when they do not stop.

The norm of all gradients is the same number in every process, so all of them skip the same updates.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from fairseq.logging import metrics
from torch import Tensor, nn

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
    """Counts them, in all and in a row, and ends the run after `limit` in a row."""

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
            raise UserError(
                f"The loss or its gradients were not finite {self.in_a_row} times in a row in the place of update "
                f"{update} (`--max-nonfinite {self.limit}`): lower `--lr`, raise `--warmup-updates` or set "
                f"`--clip-norm`, and {self._what_is_left()}."
            )
        logger.warning(f"update {update}: loss or gradients are not finite; left this batch out ({self.total} so far)")

    def passed(self) -> None:
        """An update was made."""
        self.in_a_row = 0

    def log(self) -> None:
        """Log the total once there is one."""
        if self.total:
            metrics.log_scalar("nonfinite_updates", self.total, weight=0, priority=510, round=0)

    def _what_is_left(self) -> str:
        path = os.path.join(self.save_dir, "checkpoint_last.pt")
        return f"go on from `{path}`, saved before them" if os.path.exists(path) else "start again; nothing was saved"


def forget_gradients(optimizer: Any) -> None:
    """Drop the gradients, and what a half-precision optimizer without a scaler was going to multiply them by."""
    optimizer.zero_grad()
    if getattr(optimizer, "scaler", None) is None and hasattr(optimizer, "_multiply_factor"):
        optimizer._multiply_factor = 1.0


def show_in_gradients(criterion: nn.Module, inputs: Any, output: Any) -> None:
    """A forward hook of the criterion: a loss that is not finite gives gradients that are not, without waiting for it.

    Otherwise an infinite sum can leave its finite terms' gradients behind.
    """
    loss = output[0]
    if isinstance(loss, Tensor) and loss.requires_grad:
        poison = (loss.detach() * 0).sum()  # 0, or NaN
        loss.register_hook(lambda grad: grad + poison.to(grad.dtype))
