"""Conditional layer norm, alignment and bottleneck (CA-MTL, §2.1.2 to §2.1.4), and which parameters are conditional."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import LongTensor, Tensor, nn
from torch.nn import functional as F

from fairseq_mtmoe.conditioning.attention import ConditionalAttentionBias
from fairseq_mtmoe.conditioning.film import FiLM, TaskEmbeddings, Tasks, initialized, modulated


class ConditionalLayerNorm(nn.LayerNorm):
    """`h = (a-μ)/σ · γ_0·(1+γ(z)) + β_0 + β(z)` (§2.1.3, equation 3), with γ_0 and β_0 of the pretrained norm.

    It keeps that norm's parameter names, `weight` and `bias`, beside `film`.

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


class ConditionalAlignment(nn.Module):
    """`x·R(z)` between the embeddings and the first block (§2.1.2, equation 2), with `R(z) = FiLM(R; z)`.

    R, one for all tasks, begins as the identity. No matrix is made of a task:
    `x·R(z) = (1 + γ(z))·(x·R) + β(z)·Σ_i x_i`.

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


NARROWING = 3


class ConditionalBottleneck(nn.Module):
    """`B(x) = up(down(FiLM(norm(x); z)))` (§2.1.4): H to H/3 to H, with no non-linearity between (the authors' code).

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


ATTENTION, NORM, ALIGNMENT, BOTTLENECK = PARTS = ("attention", "norm", "alignment", "bottleneck")

# All parameters of these; of a conditional norm FiLM's, since the others are those of the norm that it was made from.
_OF_CONDITIONS = (TaskEmbeddings, FiLM, ConditionalAttentionBias, ConditionalAlignment, ConditionalBottleneck)


def conditional_names(model: nn.Module) -> Iterator[str]:
    """The names of the parameters that a model has because it adapts to tasks; a pretrained one has none of them."""
    for path, module in model.named_modules():
        if isinstance(module, _OF_CONDITIONS):
            for name, _ in module.named_parameters(prefix=path):
                yield name


def with_new_conditions(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state of a model that adapts to no tasks, with what else `model` has as it is now; any other as it is."""
    own, new = model.state_dict(), set(conditional_names(model))
    tables = {f"{path}.weight" for path, module in model.named_modules() if isinstance(module, TaskEmbeddings)}
    return {**({} if tables & state.keys() else {name: own[name] for name in new}), **state}
