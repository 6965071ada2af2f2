"""FiLM, feature-wise linear modulation: `(1 + γ(z))·x + β(z)`, with γ and β one linear map of a task's embedding z.

There are few tasks and many tokens. So γ and β are worked out for all tasks once, (K, F), and every sentence or token
takes the row of its task: no product per token. They are worked out anew in each pass, since they train; while a text
grows word by word, once (`Tasks.keeping`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import LongTensor, Tensor, nn

STD = 0.02  # of initial weights, as in the authors' code


class FiLM(nn.Module):
    """The map from tasks' embeddings to their γ and β.

    Args:
        dim: D, the size of a task's embedding.
        features: F, the numbers that are modulated.
    """

    def __init__(self, dim: int, features: int) -> None:
        super().__init__()
        self.linear = initialized(nn.Linear(dim, 2 * features))

    def parameters_of(self, z_KD: Tensor) -> tuple[Tensor, Tensor]:
        """γ and β of each task, (K, F) both; 0 for an embedding of zeros, until the map's bias is trained."""
        gamma_KF, beta_KF = self.linear(z_KD).chunk(2, -1)
        return gamma_KF, beta_KF

    def scale_and_shift_of(self, z_KD: Tensor) -> tuple[Tensor, Tensor]:
        """1 + γ and β of each task, (K, F) both."""
        gamma_KF, beta_KF = self.parameters_of(z_KD)
        return 1 + gamma_KF, beta_KF

    def forward(self, x: Tensor, z_KD: Tensor, task_ids: LongTensor) -> Tensor:
        """`x` (…, B, F) modulated by the tasks `task_ids` (B,) of its sentences, or of its tokens."""
        return modulated(x, *self.scale_and_shift_of(z_KD), task_ids)


def modulated(x: Tensor, scale_KF: Tensor, shift_KF: Tensor, task_ids: LongTensor) -> Tensor:
    """`scale·x + shift` with the rows of each sentence's task; `x` is (…, B, F)."""
    return x * scale_KF.index_select(0, task_ids) + shift_KF.index_select(0, task_ids)


def initialized(linear: nn.Linear) -> nn.Linear:
    """With weights from N(0, 0.02²) and biases of 0."""
    nn.init.normal_(linear.weight, std=STD)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


@dataclass(frozen=True)
class Tasks:
    """What a pass gives conditional modules: they have gradients, and are made anew for each pass.

    Attributes:
        raw_KD: the table itself, (K, D); alignment reads it.
        shared_KD: through the map that all other modules share, (K, D).
        kept: what modules made of them, where many passes without gradients are of the same ones; None: nothing is.
    """

    raw_KD: Tensor
    shared_KD: Tensor
    kept: dict[nn.Module, tuple[Tensor, Tensor]] | None = field(default=None, compare=False)

    def keeping(self) -> Self:
        """The same for many passes, such as of words that come one by one: each module is asked once."""
        return replace(self, kept={})

    def once(self, module: nn.Module, make: Callable[[Self], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """What a module makes of the tasks for all sentences and tokens alike: made now, or kept."""
        if self.kept is None:
            return make(self)
        if module not in self.kept:
            self.kept[module] = make(self)
        return self.kept[module]


class TaskEmbeddings(nn.Module):
    """One table for the whole model, and the linear map that its blocks share.

    All embeddings begin at 0, where every FiLM is the identity: a model with new conditional modules computes what it
    would without them. Tasks part with their first gradients, since FiLM's weights are random.

    Args:
        num_tasks: K.
        dim: D, the size of an embedding.
        transforms: whether anything reads the embeddings through the map; alignment alone does not.
    """

    def __init__(self, num_tasks: int, dim: int, transforms: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_tasks, dim))
        self.transform = initialized(nn.Linear(dim, dim)) if transforms else None

    def forward(self) -> Tasks:
        """For one pass of the model."""
        return Tasks(self.weight, self.weight if self.transform is None else self.transform(self.weight))
