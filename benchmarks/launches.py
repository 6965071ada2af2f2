"""Counts what a GPU would launch: operations that are computed, with views and memory that is only taken apart.

An operation of torch counts as one, although some of them (sorting, solving) are several kernels. So does one kernel
of Triton's: there is no GPU here, and in its place stands what it is compared with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fairseq_mtmoe.moe import one_kernel
from fairseq_mtmoe.moe.assignment import triton_form
from fairseq_mtmoe.moe.assignment.gpu_form import gpu_assignment
from fairseq_mtmoe.moe.grouped_matmul import backends
from fairseq_mtmoe.moe.grouped_matmul.backends import ONE_BY_ONE, Backend
from fairseq_mtmoe.moe.one_kernel import FORMS, NAMESPACE

NO_WORK = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_"}


class LaunchCounter(TorchDispatchMode):
    """Counts inside `with`, in backward passes too.

    Attributes:
        launches: how often each operation was computed, by name.
        views: operations that made another view of a tensor, or took memory.
        exchanges: operations between processes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.views = 0
        self.exchanges = 0
        self._in_kernel = False

    @property
    def total(self) -> int:
        return self.launches.total()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._in_kernel:
            return func(*args, **kwargs)
        if func.namespace == "mtmoe":  # what is inside matters
            with self:
                return OPDEFS[func._schema.name]._init_fn(*args, **kwargs)
        if func.namespace == NAMESPACE:
            name = func._schema.name.split("::")[1]
            return self.kernel(name, FORMS[name].in_torch, *args, **kwargs)
        with self:  # what torch itself makes of others, if it does
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        result = func(*args, **kwargs)
        name = func._schema.name.split("::")[1]
        if func.namespace == "c10d":
            self.exchanges += 1
        elif name in NO_WORK or (not func._schema.is_mutable and _is_view(args, kwargs, result)):
            self.views += 1
        else:
            self.launches[name] += 1
        return result

    def kernel(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call what stands in a kernel's place, and count the kernel."""
        if not self._in_kernel:
            self.launches[f"kernel {name}"] += 1
        return self.uncounted(function, *args, **kwargs)

    def uncounted(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function whose operations are nobody's."""
        before, self._in_kernel = self._in_kernel, True
        try:
            with self:
                return function(*args, **kwargs)
        finally:
            self._in_kernel = before


class _Kernels:
    """A module of Triton's kernels, each of which is counted when it is launched on a grid."""

    def __init__(self, counter: LaunchCounter) -> None:
        self._counter = counter

    def __getattr__(self, name: str) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            self._counter.kernel(name, lambda: None)

        return _OnAnyGrid(launch)


class _OnAnyGrid:
    def __init__(self, launch: Callable[..., None]) -> None:
        self._launch = launch

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self._launch


def _is_view(args: Any, kwargs: Any, result: Any) -> bool:
    """Whether all results lie in the memory of arguments."""
    known = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
    made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
    return bool(made) and all(tensor.untyped_storage()._cdata in known for tensor in made)


@contextmanager
def pretended_triton(counter: LaunchCounter) -> Iterator[None]:
    """Inside, Triton's kernels are used wherever they can be on a pretended GPU, and counted."""

    def stands_in(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *operands: counter.kernel(name, function, *operands)

    def assignment(*operands: Any) -> Any:
        """Its kernels are called, but find nothing."""
        real_assignment(*operands)
        return counter.uncounted(gpu_assignment, *operands)

    real_assignment = triton_form.triton_assignment
    with (
        patch.object(one_kernel, "has_triton", lambda tensor: tensor.is_cuda),
        patch.object(one_kernel, "kernels_are_right", lambda device: True),
        patch.object(torch.cuda, "device_of", lambda tensor: nullcontext()),
        patch.object(triton_form, "triton_assignment", assignment),
        patch.object(triton_form, "_kernels", lambda: _Kernels(counter)),
        patch.object(
            backends,
            "BY_TRITON",
            Backend(*(stands_in(name, getattr(ONE_BY_ONE, name)) for name in ("linear", "outer"))),
        ),
        patch.object(backends, "_can_use_triton", lambda dtype, like: True),
        patch.object(backends, "_finished_by_triton", stands_in("finish", backends._finished)),
        patch.object(backends, "_cleared_by_triton", stands_in("clear", backends._cleared)),
        patch.object(backends, "_sums_by_triton", stands_in("sums", backends._sums)),
    ):
        yield


def count(work: Callable[[], object], has_triton: bool) -> LaunchCounter:
    """Return what a work launches."""
    counter = LaunchCounter()
    if not has_triton:
        with counter:
            work()
        return counter
    with pretended_triton(counter), counter:
        work()
    return counter


def as_words(launches: Counter[str], most: int = 12) -> str:
    """The most frequent operations with their numbers."""
    return ", ".join(f"{name} {number}" for name, number in launches.most_common(most))
