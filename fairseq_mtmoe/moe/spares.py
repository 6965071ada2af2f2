"""Memory for gradients, kept from one update to the next.

The gradients of N experts are large tensors that live from a backward pass to the next `zero_grad`. On a CPU such
memory comes from the operating system each time, which clears it page by page: for many experts that takes as long as a
tenth of the layer. A GPU's allocator keeps what it has, and needs no help.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MOST = 4  # tensors: two weights, and as much again while gradients of several batches are added up


class SpareMemory:
    """Hands out uninitialised tensors, and hands their memory out again once nobody else refers to it."""

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []

    def new_empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """An uninitialised tensor of the type and device of `like`."""
        if like.device.type != "cpu":
            return like.new_empty(shape)
        size = torch.Size(shape).numel() * like.element_size()
        for storage in self._storages:
            if storage.nbytes() == size and _is_ours_alone(storage):
                return like.new_empty(0).set_(storage).view(shape)
        tensor = like.new_empty(shape)
        self._storages = [*self._storages, tensor.untyped_storage()][-MOST:]
        return tensor

    def clear(self) -> None:
        """Give the memory back."""
        self._storages = []

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies of a module, and those in files, start with nothing.
        return SpareMemory, ()


def _is_ours_alone(storage: torch.UntypedStorage) -> bool:
    return torch._C._storage_Use_Count(storage._cdata) == 1
