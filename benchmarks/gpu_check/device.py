"""What is different between a GPU and the CPU on which the kit is tested, the clock (`timing.py`) aside."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator

import torch
from launches import count
from timing import seconds_of
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from gpu_check.rows import Setting

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
RATE_SIZE = 8192  # of the square matrices that measure a card's rate


def short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def no_waits(device: str) -> Iterator[None]:
    """Inside, an operation after which the host waits for the GPU fails; on a CPU there is none."""
    if device == "cpu":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def count_waits(device: str, work: Callable[[], object]) -> int:
    """How often the host waits for the GPU in a work; 0 on a CPU."""
    if device == "cpu":
        work()
        return 0
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(before)
    return sum("synchroniz" in str(warning.message) for warning in found)


def count_launches(setting: Setting, work: Callable[[], object]) -> int:
    """Kernels and copies that the GPU runs for a work; at toy sizes, operations that it would run."""
    if setting.toy:
        return count(work, has_triton=False).total
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    events = profiler.events() or []
    return sum(event.device_type == DeviceType.CUDA and not event.is_user_annotation for event in events)


def peak_bytes(device: str, work: Callable[[], object]) -> int | None:
    """The most bytes that a work holds beyond what was held before; None on a CPU, whose allocator does not say."""
    if device == "cpu":
        work()
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def matmul_rate(device: str, dtype: torch.dtype, size: int = RATE_SIZE) -> float:
    """Floating-point operations per second of one large matrix product, the best of several, by the device's clock."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = [seconds_of(lambda: left @ right, device, head_start=True) for _ in range(20)]
    return 2 * size**3 / min(seconds)


def free(setting: Setting) -> None:
    """Give memory back between checks: what the last one measured is not to be in the next one's way."""
    if not setting.toy:
        gc.collect()
        torch.cuda.empty_cache()
