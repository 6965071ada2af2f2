"""The tests of the layers on another device: what a test makes, or a module's constructor, is there.

What a computation makes has to say where: a tensor that it forgets on the CPU must fail, as it would for a user. Random
numbers are a CPU's, so that a test sees the same ones everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

FACTORIES = _device_constructors()  # now: a pretended GPU replaces them
OF_CPUS = dict.fromkeys(
    ("test_priced_assignment.py", "test_kernel_builds.py",
     "test_mkl_batch.py", "test_gradient_buffers.py"),
    "it is about what there is for CPUs alone",
)  # fmt: skip
NOT_HERE = {**OF_CPUS, "test_compile.py": "a mode around it would be compiled, too"}


class OnDevice(TorchFunctionMode):
    """Inside, new tensors of tests and constructors are on this device, unless these say otherwise."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func not in FACTORIES or kwargs.get("device") is not None or not _is_asked(sys._getframe(1)):
            return func(*args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        return func(*args, **kwargs, device="cpu").to(self.device).requires_grad_(requires_grad)


def _is_asked(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename.endswith(("pretended_gpu.py", "_contextlib.py")):
        frame = frame.f_back
    return frame is not None and ("/tests/" in frame.f_code.co_filename or frame.f_code.co_name == "__init__")


@contextmanager
def on_device(option: str) -> Iterator[None]:
    """Inside, tests are on the device of pytest's `--device`."""
    from tests.helpers.pretended_gpu import pretended_gpu

    if option == "cpu":
        yield
    elif option == "cuda":
        with OnDevice("cuda"):
            yield
    else:
        with pretended_gpu(), OnDevice("cuda"):
            yield
