"""A pool of gradient buffers, reused from one update to the next.

On a CPU new memory is cleared page by page, which takes up to a tenth of the layer's time with
many experts. A buffer is free by torch's use count of its storage, which is no public interface.
It is checked once, because a wrong count would overwrite gradients in use. If the check fails,
nothing is reused.
"""

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fairseq_mtmoe.moe.device_kind import is_on_cpu

MOST = 4  # tensors: two weights, twice while gradients of several batches are accumulated

CountUses = Callable[[int], int]


class GradientBufferPool:
    """Allocates uninitialised tensors, and reuses memory without other references."""

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
                # The only use is that in our list.
                if storage.nbytes() == size and count_uses(storage._cdata) == 1:
                    return like.new_empty(0).set_(storage).view(shape)
            tensor = like.new_empty(shape)
            self._storages = [*self._storages, tensor.untyped_storage()][-MOST:]
            return tensor

    def clear(self) -> None:
        """Free all buffers."""
        self._storages = []

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies of a module and pickles start empty.
        return GradientBufferPool, ()


@cache
def trusted_count() -> CountUses | None:
    """Return torch's use count of storages if it is right (CPU builds from 2.8)."""
    count_uses: CountUses | None = getattr(torch._C, "_storage_Use_Count", None)
    return count_uses if count_uses is not None and counts_right(count_uses) else None


def counts_right(count_uses: CountUses) -> bool:
    """Return whether an unshared storage counts one use, and more with a view."""
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
