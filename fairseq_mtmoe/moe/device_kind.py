"""Which form a computation takes: chosen here, from a tensor's device, and nowhere else.

On a GPU the host would wait for a value until all work before it is done: its forms go without, or ask once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from importlib.util import find_spec

import torch
from torch import Tensor

GROUPED_MM_MAJORS = (9, 10)  # compute capabilities that have a kernel; elsewhere torch has a loop, which waits
TRITON_MAJOR = 8  # the first whose tensor cores take bfloat16
HAS_TRITON = find_spec("triton") is not None


class DeviceKind(Enum):
    """A kind of processor, as far as computations differ by it."""

    CPU = auto()
    GPU = auto()
    GPU_WITH_GROUPED_MM = auto()  # torch has a grouped product in bfloat16 there, in one kernel

    @property
    def can_sync(self) -> bool:
        """Whether looking at a tensor's values costs nothing."""
        return self is DeviceKind.CPU


_everywhere: DeviceKind | None = None


def device_kind(tensor: Tensor) -> DeviceKind:
    """Return the form for computations with this tensor."""
    if _everywhere is not None:
        return _everywhere
    if not is_on_gpu(tensor):
        return DeviceKind.CPU
    major, _ = torch.cuda.get_device_capability(tensor.device)
    return DeviceKind.GPU_WITH_GROUPED_MM if major in GROUPED_MM_MAJORS else DeviceKind.GPU


def is_on_cpu(tensor: Tensor) -> bool:
    """Whether compiled code can read a tensor in a CPU's memory, whatever form computations take."""
    return tensor.device.type == "cpu"


def is_on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is in a GPU's memory, for CUDA's own tools, whatever form computations take."""
    return tensor.device.type == "cuda"


def has_triton(tensor: Tensor) -> bool:
    """Whether Triton's kernels can be used where a tensor is; torch's builds for CUDA bring it along."""
    if not is_on_gpu(tensor) or not HAS_TRITON:
        return False
    major, _ = torch.cuda.get_device_capability(tensor.device)
    return major >= TRITON_MAJOR


def rounds_to_tf32() -> bool:
    """Whether torch lets products in float32 go to tensor cores, which round their operands."""
    return torch.get_float32_matmul_precision() != "highest"


@contextmanager
def device_kind_everywhere(kind: DeviceKind) -> Iterator[None]:
    """Inside, computations take this form wherever their tensors are; for tests on a CPU."""
    global _everywhere
    before, _everywhere = _everywhere, kind
    try:
        yield
    finally:
        _everywhere = before
