"""How many tokens each expert got, per task: the numbers behind the paper's pictures (figures 1, 3, 4)."""

from __future__ import annotations

import torch
from torch import Tensor


class ExpertLoad:
    """Counts of routed tokens, one row per task: (K, N), or (1, N) where tasks are not told apart.

    It counts while `enabled` (not at first), and is no part of a checkpoint. Tokens that come without task ids count
    for the first row.
    """

    def __init__(self, num_experts: int, num_tasks: int = 0) -> None:
        self.enabled = False
        self.counts = torch.zeros(max(num_tasks, 1), num_experts, dtype=torch.long)

    def reset(self) -> None:
        """Forget what was counted."""
        self.counts = torch.zeros_like(self.counts)

    def record(self, expert_T: Tensor, task_T: Tensor | None) -> None:
        """Count tokens with these experts and tasks, (T,) each, if enabled."""
        if not self.enabled:
            return
        num_tasks, num_experts = self.counts.shape
        cell_T = expert_T if task_T is None or num_tasks == 1 else task_T * num_experts + expert_T
        added = torch.bincount(cell_T, minlength=self.counts.numel()).view_as(self.counts)
        self.counts = self.counts.to(added.device) + added

    def shares(self) -> Tensor:
        """Each task's distribution over experts, (K, N), float32; 0 for a task without tokens."""
        return self.counts / self.counts.sum(1, keepdim=True).clamp(min=1)
