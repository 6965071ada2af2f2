"""Conditional alignment: a matrix between the embeddings and the first block that depends on the task.

CA-MTL, §2.1.2 and equation 2: `x·R(z)` with `R(z) = FiLM(R; z)`, one matrix R for all tasks.
"""

from __future__ import annotations

import torch
from torch import LongTensor, Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.conditioning.film import FiLM
from fairseq_mtmoe.conditioning.task_embeddings import Tasks


class ConditionalAlignment(nn.Module):
    """`R_ij(z) = (1 + γ_j(z))·R_ij + β_j(z)`; R begins as the identity.

    No matrix is made of a task: `x·R(z) = (1 + γ(z))·(x·R) + β(z)·Σ_i x_i`.

    Args:
        dim: D, the size of a task's embedding.
        size: H.
    """

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.film = FiLM(dim, size)
        self.weight = nn.Parameter(torch.eye(size))

    def forward(self, x: Tensor, tasks: Tasks, task_ids: LongTensor) -> Tensor:
        """`x` (…, B, H) aligned for the tasks `task_ids` (B,) of its sentences, or of its tokens."""
        scale_KH, beta_KH = tasks.once(self, lambda tasks: self.film.scale_and_shift_of(tasks.raw_KD))
        aligned = F.linear(x, self.weight.t()) * scale_KH.index_select(0, task_ids)
        return aligned + x.sum(-1, keepdim=True) * beta_KH.index_select(0, task_ids)
