"""Conditional attention: a block-diagonal bias of attention's scores that depends on the task.

CA-MTL, §2.1.1: `softmax(M(z) + QKᵀ/√d)·V`, where `M(z) = ⊕_n FiLM(A_n; z)` is the same for all heads.
"""

from __future__ import annotations

import torch
from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.conditioning.film import FiLM
from fairseq_mtmoe.conditioning.task_embeddings import Tasks


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

    def forward(self, tasks: Tasks, task_ids: LongTensor, length: int) -> Tensor:
        """What is added to the scores of sentences of the tasks `task_ids` (B,), padded to `length`: (B, 1, L, L)."""
        return self.of_tasks(tasks, length).index_select(0, task_ids).unsqueeze(1)

    def _pattern(self, length: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of each token its row of A and its place in its block, (L,); which are of the same block, (L, L)."""
        positions = len(self.weight)
        place_L = torch.arange(length, device=self.weight.device)
        row_L = place_L % positions
        begin_L = place_L - row_L % self.width  # the block's first token, also of the last and shorter one
        return row_L, row_L % self.width, begin_L.unsqueeze(1) == begin_L
