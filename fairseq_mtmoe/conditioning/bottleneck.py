"""The conditional bottleneck: a narrow pair of linear maps that reads what a task modulates.

CA-MTL, §2.1.4: FiLM, then H to H/3 to H, with no non-linearity between them (the authors' code). It may read through
a norm of its own ("and uses a CLN").
"""

from __future__ import annotations

from torch import LongTensor, Tensor, nn

from fairseq_mtmoe.conditioning.film import FiLM, initialized, modulated
from fairseq_mtmoe.conditioning.layer_norm import apply_norm
from fairseq_mtmoe.conditioning.task_embeddings import Tasks

NARROWING = 3


class ConditionalBottleneck(nn.Module):
    """`B(x) = up(down(FiLM(norm(x); z)))`.

    Args:
        dim: D, the size of a task's embedding.
        size: H.
        begins_at_zero: whether `B(x)` is 0 until it is trained, for what is added to a stream.
        norm: conditional or not; none: it reads `x` itself.
    """

    def __init__(self, dim: int, size: int, begins_at_zero: bool, norm: nn.LayerNorm | None = None) -> None:
        super().__init__()
        self.layer_norm = norm
        narrow = max(1, size // NARROWING)
        self.film = FiLM(dim, size)
        self.down = initialized(nn.Linear(size, narrow))
        self.up = initialized(nn.Linear(narrow, size))
        if begins_at_zero:
            nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor, tasks: Tasks, task_ids: LongTensor) -> Tensor:
        """For `x` (…, B, H), and the tasks `task_ids` (B,) of its sentences, or of its tokens; shaped as `x`."""
        if self.layer_norm is not None:
            x = apply_norm(self.layer_norm, x, tasks, task_ids)
        of_tasks = tasks.once(self, lambda tasks: self.film.scale_and_shift_of(tasks.shared_KD))
        output: Tensor = self.up(self.down(modulated(x, *of_tasks, task_ids)))
        return output
