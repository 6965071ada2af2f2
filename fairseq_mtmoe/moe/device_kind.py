"""Choose the form of a computation by the tensor's device alone.

Reading a value of a GPU's tensor synchronises the host. The forms for GPUs never do so, or once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from importlib.util import find_spec

import torch
from torch import Tensor

# Compute capabilities with a kernel; elsewhere torch has a loop, which synchronises.
GROUPED_MM_MAJORS = (9, 10)
TRITON_MAJOR = 8  # the first compute capability whose tensor cores support bfloat16
HAS_TRITON = find_spec("triton") is not None


class DeviceKind(Enum):
    """The kinds of processors with different forms of computations."""

    CPU = auto()
    GPU = auto()
    GPU_WITH_GROUPED_MM = auto()  # torch has a grouped product in bfloat16 as one kernel there

    @property
    def host_can_read(self) -> bool:
        """Whether the host can read a tensor's values without synchronisation."""
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
    """Return whether a tensor is in CPU memory, where compiled code can read it."""
    return tensor.device.type == "cpu"


def is_on_gpu(tensor: Tensor) -> bool:
    """Return whether a tensor is in GPU memory, for CUDA's own functions."""
    return tensor.device.type == "cuda"


def has_triton(tensor: Tensor) -> bool:
    """Return whether Triton kernels can run on a tensor's device."""
    if not is_on_gpu(tensor) or not HAS_TRITON:
        return False
    major, _ = torch.cuda.get_device_capability(tensor.device)
    return major >= TRITON_MAJOR


@contextmanager
def device_kind_everywhere(kind: DeviceKind) -> Iterator[None]:
    """Use one form for all computations inside the context; for tests on a CPU."""
    global _everywhere
    before = _everywhere
    _everywhere = kind
    try:
        yield
    finally:
        _everywhere = before
