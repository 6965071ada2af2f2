"""Records of a validation: tokens per task and expert, and weights of a mixture.

PEMT's figure 4 shows these weights.
"""

import torch
from torch import Tensor


def real_tokens(rows_TX: Tensor, padding_T: Tensor | None = None) -> Tensor:
    """Return 1 for each token, and 0 at padding, (T,), float32."""
    if padding_T is None:
        return rows_TX.new_ones(len(rows_TX), dtype=torch.float32)
    return (~padding_T).float()


def tasks_of_tokens(task_B: Tensor, num_tokens: int) -> Tensor:
    """Return the task of each token, (T,): token t is of sentence t modulo B."""
    return task_B.repeat(num_tokens // max(len(task_B), 1))


class ExpertLoad:
    """Counts of routed tokens while `enabled`, (K, N) by task.

    Without tasks they are (1, N).
    """

    def __init__(self, num_experts: int, num_tasks: int = 0) -> None:
        self.enabled = False
        self.counts = torch.zeros(max(num_tasks, 1), num_experts, dtype=torch.long)

    def reset(self) -> None:
        """Start from zero."""
        self.counts = torch.zeros_like(self.counts)

    def record(self, expert_T: Tensor, task_B: Tensor | None) -> None:
        """Count tokens by expert (T,) and task, if enabled; N is padding."""
        if not self.enabled:
            return
        num_tasks, num_experts = self.counts.shape
        if task_B is None or num_tasks == 1:
            task_T = torch.zeros_like(expert_T)
        else:
            task_T = tasks_of_tokens(task_B, len(expert_T))
        row_T = task_T.masked_fill(expert_T == num_experts, 0)
        added = self.counts.new_zeros(num_tasks, num_experts + 1, device=expert_T.device)
        index_T = row_T * (num_experts + 1) + expert_T
        added.view(-1).scatter_add_(0, index_T, torch.ones_like(expert_T))
        self.counts = self.counts.to(added.device) + added[:, :num_experts]


class MixtureWeights:
    """Mean weights of K members over sentences while `enabled`; not in checkpoints."""

    def __init__(self, num_members: int) -> None:
        self.enabled = False
        self.sums = torch.zeros(num_members + 1)  # the last element counts sentences or passes

    def reset(self) -> None:
        """Start from zero."""
        self.sums = torch.zeros_like(self.sums)

    def record(self, weights: Tensor) -> None:
        """Add the weights of a pass, (K,), or of its sentences, (B, K), if enabled."""
        if self.enabled:
            rows = weights.detach().float().view(-1, weights.shape[-1])
            sums = torch.cat([rows.sum(0), rows.new_full((1,), len(rows))])
            self.sums = self.sums.to(rows.device) + sums

    def mean(self) -> Tensor:
        """Return the mean weights, (K,), float32; NaN if nothing was recorded."""
        return self.sums[:-1] / self.sums[-1]
