"""Conditional layer normalization: a layer norm whose scale and shift depend on the task.

CA-MTL, §2.1.3 and equation 3: `h = (a-μ)/σ · γ_0·(1+γ(z)) + β_0 + β(z)`, with γ_0 and β_0 of the pretrained norm.
"""

from __future__ import annotations

from typing import Any

from torch import LongTensor, Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.conditioning.film import FiLM, modulated
from fairseq_mtmoe.conditioning.task_embeddings import Tasks


class ConditionalLayerNorm(nn.LayerNorm):
    """A layer norm that keeps its parameters' names, `weight` and `bias`, beside `film`.

    Args:
        size: H.
        dim: D, the size of a task's embedding.
        eps: added to the variance.
    """

    def __init__(self, size: int, dim: int, eps: float = 1e-5) -> None:
        super().__init__(size, eps)
        self.film = FiLM(dim, size)

    @classmethod
    def from_norm(cls, norm: Any, dim: int) -> ConditionalLayerNorm:
        """With the parameters of a layer norm, torch's or fairseq's, which it then takes the place of."""
        conditional = cls(norm.normalized_shape[0], dim, norm.eps).to(norm.weight)
        conditional.weight, conditional.bias = norm.weight, norm.bias
        return conditional

    def forward(self, x: Tensor, tasks: Tasks, task_ids: LongTensor) -> Tensor:  # type: ignore[override]
        """`x` (…, B, H) normed for the tasks `task_ids` (B,) of its sentences, or of its tokens."""
        normed = F.layer_norm(x, self.normalized_shape, eps=self.eps)
        return modulated(normed, *tasks.once(self, self._of_tasks), task_ids)

    def _of_tasks(self, tasks: Tasks) -> tuple[Tensor, Tensor]:
        """Scale and shift of each task, (K, H) both."""
        gamma_KH, beta_KH = self.film.parameters_of(tasks.shared_KD)
        return self.weight * (1 + gamma_KH), self.bias + beta_KH


def apply_norm(norm: nn.Module, x: Tensor, tasks: Tasks | None, task_ids: LongTensor | None) -> Tensor:
    """`x` after a layer norm, conditional or not."""
    if isinstance(norm, ConditionalLayerNorm):
        assert tasks is not None and task_ids is not None
        conditional: Tensor = norm(x, tasks, task_ids)
        return conditional
    plain: Tensor = norm(x)
    return plain
