"""Tensors that claim to be on a GPU, under a GPU's rules, on a machine that has none.

They are a CPU's tensors, and are computed with as such; their storages are noted as the GPU's. Inside `pretended_gpu()`
such a tensor says that its device is `cuda`, operations that mix devices fail where they would fail there, and every
operation after which the host would have waited for the GPU is counted: those that `torch.cuda.set_sync_debug_mode`
warns of (values that the host reads, shapes that follow from values, copies that are not from pinned memory).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda", 0)
FACTORIES = (
    "arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "tensor",
    "zeros",
)  # fmt: skip
NEW = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")
FROM_VALUES = {"as_tensor", "tensor", "new_tensor"}  # copied from the host's memory
READ = {"_local_scalar_dense", "equal", "_linalg_check_errors"}
SHAPED_BY_VALUES = {"nonzero", "masked_select", "unique_consecutive", "unique_dim", "_unique", "_unique2", "bincount"}
TAKES_CPU_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_"}


class GpuRules(TorchDispatchMode):
    """The rules, and what they found.

    Attributes:
        waits: what the host waited for, in order: the operation, and the line of this repository or of fairseq.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[tuple[str, str]] = []
        self._on_gpu: dict[int, StorageWeakRef] = {}  # as long as it is referred to, no other storage has its address
        self._pinned: dict[int, StorageWeakRef] = {}
        self.sync_debug_mode: int | str = 0  # as torch.cuda has it
        self.is_asked = False  # whether somebody asks for a new tensor, and says where

    def has(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._on_gpu

    def put(self, tensor: Tensor, on_gpu: bool = True) -> Tensor:
        storage = tensor.untyped_storage()
        self._on_gpu.pop(storage._cdata, None)
        if on_gpu:
            self._on_gpu[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._pinned[storage._cdata] = StorageWeakRef(storage)
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._pinned

    def wait(self, operation: str) -> None:
        self.waits.append((operation, _line()))
        if self.sync_debug_mode == "error":
            raise RuntimeError(f"called a synchronizing CUDA operation: {operation}")

    def copied(self, source: Tensor, to_gpu: bool, non_blocking: bool) -> None:
        if not (to_gpu and non_blocking and self.is_pinned(source)):
            self.wait("copy to the GPU" if to_gpu else "copy to the host")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "mtmoe":  # what is inside matters
            with self:
                return OPDEFS[func._schema.name]._init_fn(*args, **kwargs)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = [tensor for tensor in tensors if self.has(tensor)]
        if here:
            self._check(func, args, kwargs, tensors, here)
        result = func(*args, **kwargs)
        if here and func.namespace != "c10d":
            known = {tensor.untyped_storage()._cdata for tensor in tensors}
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in known:
                    self.put(leaf)
        # Autograd gives zeros where there is no gradient, on the device that it takes the value to be on.
        if func is torch.ops.aten.zeros.default and not self.is_asked and torch._C._current_graph_task_id() != -1:
            self.put(result)
        return result

    def _check(self, func: Any, args: Any, kwargs: Any, tensors: list[Tensor], here: list[Tensor]) -> None:
        name = func._schema.name.split("::")[1]
        elsewhere = [tensor for tensor in tensors if not self.has(tensor)]
        if name in ("copy_", "_to_copy", "copy"):
            if elsewhere:
                self.copied(args[1], self.has(args[0]), kwargs.get("non_blocking", False) or True in args[2:])
        elif name in TAKES_CPU_INDICES:
            self._index(name, args)
        elif func.namespace == "c10d":
            assert not elsewhere, f"{name} between processes with tensors of host and GPU"
        elif any(tensor.dim() > 0 for tensor in elsewhere) or (elsewhere and name in ("cat", "stack")):
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, but found cuda:0 and cpu")
        if name in READ or name in SHAPED_BY_VALUES:
            self.wait(name)
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            self.wait(name)

    def _index(self, name: str, args: Any) -> None:
        indices = [index for index in args[1] if index is not None]
        if not self.has(args[0]):
            raise RuntimeError(f"{name}: indices should be on cpu as the indexed tensor is, but are on cuda")
        fills = name != "index" and args[2].numel() == 1 and len(indices) == 1  # as `masked_fill`
        for index in indices:
            if not self.has(index):
                self.wait("copy of an index to the GPU")
            if index.dtype in (torch.bool, torch.uint8) and not fills:
                self.wait("index by a mask")


def _line() -> str:
    """The innermost line of the plugin, or else of fairseq or a test, that is executed."""
    frames = [frame for frame in traceback.extract_stack() if "helpers/pretended_gpu" not in frame.filename]
    for part in ("/fairseq_mtmoe/", "/site-packages/fairseq/", "/tests/"):
        for frame in reversed(frames):
            if part in frame.filename:
                return f"{part.split('/')[-2]}/{frame.filename.rpartition(part)[2]}:{frame.name}"
    return "torch"


def _is_cuda(device: Any) -> bool:
    return device is not None and (isinstance(device, int) or torch.device(device).type == "cuda")


@contextmanager
def pretended_gpu(capability: tuple[int, int] = (9, 0)) -> Iterator[GpuRules]:
    """Inside, `.cuda()`, `.to("cuda")` and `device="cuda"` give tensors of a GPU of this compute capability."""
    rules = GpuRules()
    with ExitStack() as stack:
        for name, value in {**_attributes(rules), **_methods(rules)}.items():
            stack.enter_context(patch.object(Tensor, name, value))
        for owner, names in ((torch, FACTORIES), (Tensor, NEW)):
            for name in names:
                stack.enter_context(patch.object(owner, name, _factory(rules, name, getattr(owner, name))))
        for name, value in _machine(rules, capability).items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        stack.enter_context(patch.object(torch.accelerator, "is_available", lambda: True))
        stack.enter_context(patch.object(torch.accelerator, "current_accelerator", lambda check_available=False: CUDA))
        # A kernel would look for a GPU's memory.
        stack.enter_context(patch("fairseq_mtmoe.moe.assignment.triton_form.has_triton", lambda tensor: False))
        stack.enter_context(rules)
        yield rules


def _attributes(rules: GpuRules) -> dict[str, property]:
    real = Tensor.device
    return {
        "device": property(lambda tensor: CUDA if rules.has(tensor) else real.__get__(tensor)),
        "is_cuda": property(rules.has),
        "is_cpu": property(lambda tensor: not rules.has(tensor)),
    }


def _methods(rules: GpuRules) -> dict[str, Callable[..., Any]]:
    real_to, real_list, real_numpy, real_new = Tensor.to, Tensor.tolist, Tensor.numpy, Tensor.new
    real_deepcopy = Tensor.__deepcopy__

    def to(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        rest = [arg for arg in args if arg is not None]
        target = kwargs.pop("device", None)
        if rest and isinstance(rest[0], Tensor):
            target, rest[0] = rest[0].device, rest[0].dtype
        elif rest and isinstance(rest[0], (str, int, torch.device)) and not isinstance(rest[0], bool):
            target = rest.pop(0)
        non_blocking = kwargs.get("non_blocking", False) or True in rest
        rest = [arg for arg in rest if isinstance(arg, torch.dtype)]
        moved = real_to(tensor, *rest, **kwargs) if rest or kwargs else tensor
        if target is None or _is_cuda(target) == rules.has(tensor):
            return moved
        rules.copied(tensor, _is_cuda(target), non_blocking)
        with _disable_current_modes():
            return rules.put(moved.clone(), _is_cuda(target))

    def tolist(tensor: Tensor) -> Any:
        if not rules.has(tensor):
            return real_list(tensor)
        rules.wait("tolist")
        with _disable_current_modes():
            return real_list(tensor)

    def numpy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if rules.has(tensor):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        return real_numpy(tensor, *args, **kwargs)

    def new(tensor: Tensor, *args: Any) -> Tensor:
        return rules.put(real_new(tensor, *args), rules.has(tensor))

    def deepcopy(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
        return rules.put(real_deepcopy(tensor, memo), rules.has(tensor))

    return {
        "__deepcopy__": deepcopy,
        "new": new,
        "to": to,
        "cuda": lambda tensor, device=None, non_blocking=False: to(tensor, CUDA, non_blocking=non_blocking),
        "cpu": lambda tensor: to(tensor, "cpu"),
        "type_as": lambda tensor, other: to(tensor, other),
        "get_device": lambda tensor: 0 if rules.has(tensor) else -1,
        "tolist": tolist,
        "numpy": numpy,
        "pin_memory": lambda tensor: rules.pin(tensor.clone()),
        "is_pinned": rules.is_pinned,
    }


def _factory(rules: GpuRules, name: str, real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def make(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        before, rules.is_asked = rules.is_asked, True
        try:
            made = real(*args, **kwargs) if device is None or _is_cuda(device) else real(*args, device=device, **kwargs)
        finally:
            rules.is_asked = before
        if _is_cuda(device):
            rules.put(made)
            if name in FROM_VALUES:
                rules.wait("copy to the GPU")
        return rules.pin(made) if pin_memory else made

    return make


def _machine(rules: GpuRules, capability: tuple[int, int]) -> dict[str, Any]:
    """What `torch.cuda` says of the GPU, as far as torch's and fairseq's training asks."""
    properties = SimpleNamespace(major=capability[0], minor=capability[1], total_memory=2**36, name="pretended")
    # A CPU's generator draws for it.
    nothing = ("empty_cache", "manual_seed", "reset_peak_memory_stats", "set_device", "set_rng_state", "_sleep")
    zero = ("current_device", "max_memory_allocated", "memory_allocated")
    return {
        **{name: lambda *args: None for name in nothing},
        **{name: lambda *args: 0 for name in zero},
        "Event": _Event,
        "device": lambda device: nullcontext(),
        "device_count": lambda: 1,
        "get_device_capability": lambda device=None: capability,
        "get_device_name": lambda device=None: "pretended",
        "get_device_properties": lambda device: properties,
        "get_sync_debug_mode": lambda: rules.sync_debug_mode,
        "get_rng_state": torch.get_rng_state,
        "is_available": lambda: True,
        "set_sync_debug_mode": lambda mode: setattr(rules, "sync_debug_mode", mode),
        "synchronize": lambda device=None: rules.wait("synchronize"),
        "ByteTensor": lambda size: torch.zeros(size, dtype=torch.uint8, device=CUDA),
        "DoubleTensor": lambda size: torch.zeros(size, dtype=torch.double, device=CUDA),
    }


class _Event:
    """A moment of the GPU's work; waiting for it is not counted: `--log-expert-comm` asks for that."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.record = self.synchronize = lambda: None

    def elapsed_time(self, end: _Event) -> float:
        return 1.0
