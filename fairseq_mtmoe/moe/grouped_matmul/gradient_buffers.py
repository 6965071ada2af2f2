"""Memory for gradients, kept from one update to the next.

The gradients of N experts are large tensors that live from a backward pass to the next `zero_grad`. On a CPU such
memory comes from the operating system each time, which clears it page by page: for many experts that takes as long as a
tenth of the layer. A GPU's allocator keeps what it has, and needs no help.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

MOST = 4  # tensors: two weights, and as much again while gradients of several batches are added up


# Builds of torch without CUDA have it from about version 2.8 on; without it, nothing is kept.
_count_uses = getattr(torch._C, "_storage_Use_Count", None)


class SpareMemory:
    """Hands out uninitialised tensors, and hands their memory out again once nobody else refers to it."""

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []
        self._lock = threading.Lock()  # backward passes may run in several threads

    def new_empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """An uninitialised tensor of the type and device of `like`."""
        if like.device.type != "cpu" or _count_uses is None:
            return like.new_empty(shape)
        size = torch.Size(shape).numel() * like.element_size()
        with self._lock:
            for storage in self._storages:
                if storage.nbytes() == size and _count_uses(storage._cdata) == 1:  # the one in our list
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
