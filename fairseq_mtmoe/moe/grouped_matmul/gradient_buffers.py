"""A pool of gradient buffers: memory for gradients, kept from one update to the next.

On a CPU new memory is cleared page by page: for many experts' gradients as long as a tenth of the layer. A buffer is
free by torch's count of a storage's uses, which is no public interface: it is tried out once, because by another count
gradients in use would be overwritten, and where it differs nothing is kept.
"""

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.moe.device_kind import is_on_cpu

MOST = 4  # tensors: two weights, and as much again while gradients of several batches are added up

CountUses = Callable[[int], int]


class GradientBufferPool:
    """Hands out uninitialised tensors, and their memory again once nobody else refers to it."""

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []
        self._lock = threading.Lock()  # backward passes may run in several threads

    def new_empty(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """Return an uninitialised tensor of the type and device of `like`."""
        count_uses = trusted_count()
        if count_uses is None or not is_on_cpu(like):
            return like.new_empty(shape)
        size = torch.Size(shape).numel() * like.element_size()
        with self._lock:
            for storage in self._storages:
                if storage.nbytes() == size and count_uses(storage._cdata) == 1:  # the one in our list
                    return like.new_empty(0).set_(storage).view(shape)
            tensor = like.new_empty(shape)
            self._storages = [*self._storages, tensor.untyped_storage()][-MOST:]
            return tensor

    def clear(self) -> None:
        self._storages = []

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies of a module, and those in files, start with nothing.
        return GradientBufferPool, ()


@cache
def trusted_count() -> CountUses | None:
    """Return torch's count of a storage's uses, if it is there and right; CPU builds have it from 2.8 on."""
    count_uses: CountUses | None = getattr(torch._C, "_storage_Use_Count", None)
    return count_uses if count_uses is not None and counts_right(count_uses) else None


def counts_right(count_uses: CountUses) -> bool:
    """Whether a storage counts one use when nobody else has it, and more with a tensor or a view."""
    try:
        tensor = torch.empty(4, device="cpu")
        storage = tensor.untyped_storage()
        counts = [count_uses(storage._cdata)]
        view = tensor[1:].detach()
        del tensor
        counts.append(count_uses(storage._cdata))
        del view
        free = count_uses(storage._cdata)
        again = torch.empty(0, device="cpu").set_(storage)
        counts.append(count_uses(storage._cdata))
        del again
        return free == count_uses(storage._cdata) == 1 and all(count > 1 for count in counts)
    except Exception:  # another signature, or another kind of storage
        return False
