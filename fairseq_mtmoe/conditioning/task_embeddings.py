"""The table of task embeddings: all that conditional modules know of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from fairseq_mtmoe.conditioning.film import initialized


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
