"""Conditional attention: a block-diagonal bias of attention's scores that depends on the task.

CA-MTL, §2.1.1: `softmax(M(z) + QKᵀ/√d)·V`, where `M(z) = ⊕_n FiLM(A_n; z)` is the same for all heads.
"""

from __future__ import annotations

import torch
from torch import LongTensor, Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.conditioning.film import FiLM, Tasks


def block_width(positions: int, size: int) -> int:
    """How many tokens a block has where there are H/L of them (§2.1.1): of BERT base's 128 tokens 22.

    Args:
        positions: L, the length of inputs.
        size: H, the model's width.
    """
    blocks = max(1, size // positions)
    return -(-positions // blocks)


class ConditionalAttentionBias(nn.Module):
    """M(z): tokens of the same block of neighbours get `(1 + γ_j(z))·A_ij + β_j(z)`, all others 0.

    Sentences may have any length. A token beyond `positions` has the row of A, and the place in a block, of the one
    that is `positions` before it: the pattern begins anew, and blocks do not reach over its end.

    Args:
        dim: D, the size of a task's embedding.
        positions: the rows of A, one for each position.
        width: W, tokens of a block, and columns of A; γ and β have as many numbers, the same in each block.
    """

    def __init__(self, dim: int, positions: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.film = FiLM(dim, width)
        self.weight = nn.Parameter(torch.zeros(positions, width))

    def of_tasks(self, tasks: Tasks, length: int) -> Tensor:
        """M(z) of every task for sentences of up to `length` tokens, (K, L, L): rows read, columns are read."""
        gamma_KW, beta_KW = (part.unsqueeze(1) for part in self.film.parameters_of(tasks.shared_KD))
        row_L, place_L, in_block_LL = self._pattern(length)
        values_KLW = (1 + gamma_KW) * self.weight.index_select(0, row_L) + beta_KW
        return values_KLW.index_select(2, place_L) * in_block_LL

    def row_of_tasks(self, tasks: Tasks, place: int) -> Tensor:
        """The row of M(z) of every task at one place, up to it, (K, place + 1): for words that come one by one."""
        row = place % len(self.weight)
        num_before, num_in_block = place - row % self.width, row % self.width + 1
        of_tasks = tasks.once(self, lambda tasks: self.film.parameters_of(tasks.shared_KD))
        gamma_KW, beta_KW = (part[:, :num_in_block] for part in of_tasks)
        return F.pad((1 + gamma_KW) * self.weight[row, :num_in_block] + beta_KW, (num_before, 0))

    def forward(self, tasks: Tasks, task_ids: LongTensor, length: int, place_BL: Tensor | None = None) -> Tensor:
        """What is added to the scores of sentences of the tasks `task_ids` (B,), padded to `length`: (B, 1, L, L).

        `place_BL` says where in its sentence each token is; by default where it is in its row.
        """
        bias_KLL = self.of_tasks(tasks, length)
        if place_BL is None:
            return bias_KLL.index_select(0, task_ids).unsqueeze(1)
        # An embedding's gradient, unlike an index's, has an order of its sum that is always the same.
        rows_BLL = F.embedding(task_ids.unsqueeze(1) * length + place_BL, bias_KLL.flatten(0, 1))
        return rows_BLL.gather(2, place_BL.unsqueeze(1).expand_as(rows_BLL)).unsqueeze(1)

    def _pattern(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of each token its row of A and its place in its block, (L,); which are of the same block, (L, L)."""
        positions = len(self.weight)
        place_L = torch.arange(length, device=self.weight.device)
        row_L = place_L % positions
        begin_L = place_L - row_L % self.width  # the block's first token, also of the last and shorter one
        return row_L, row_L % self.width, begin_L.unsqueeze(1) == begin_L
