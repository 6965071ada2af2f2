"""Part `products`: the ways to multiply groups of rows, each against one product after the other: right, and how fast.

A backend that does not work is never taken (`moe/grouped_matmul/backends.py` tries it out and warns), so that nothing
but this tells a user that a GPU is not used as it could be.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from statistics import median

import torch
from timing import interleaved
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind, has_triton
from fairseq_mtmoe.moe.grouped_matmul import backends
from gpu_check.device import DTYPES, free, short
from gpu_check.layer import sizes_of
from gpu_check.rows import Check, Row, Setting, Skipped, measured, passed

NUM_GROUPS, REPETITIONS, WARMUPS = 64, 7, 2


def checks(setting: Setting) -> Iterator[Check]:
    for dtype in DTYPES:
        yield Check(f"Triton, {short(dtype)}", partial(triton_works, setting, dtype))
    yield Check("torch's grouped product", partial(grouped_product_is_taken, setting))
    for dtype, is_gradient in product(DTYPES, (False, True)):
        name = f"{'gradients of weights' if is_gradient else 'products'}, {short(dtype)}"
        yield Check(name, partial(times, setting, name, dtype, is_gradient))


def triton_works(setting: Setting, dtype: torch.dtype) -> list[Row]:
    """Its kernels compile and are right."""
    if not has_triton(torch.empty(0, device=setting.device)):
        raise Skipped("there is no Triton here, or the GPU is older than its tensor cores' bfloat16")
    assert backends.is_right_by_triton(dtype, torch.device(setting.device)), "its kernels do not work: see the log"
    return [passed(f"Triton's kernels, {short(dtype)}", "right, forward and backward")]


def grouped_product_is_taken(setting: Setting) -> list[Row]:
    """In bfloat16, where the card has a kernel for it."""
    rows, weight = (torch.empty(*shape, device=setting.device, dtype=torch.bfloat16) for shape in ((4, 16), (2, 8, 16)))
    if device_kind(rows) is not DeviceKind.GPU_WITH_GROUPED_MM:
        raise Skipped("this device has no kernel for it")
    assert backends.backend_for(rows, weight, groups=2) is backends.IN_ONE, (
        "bfloat16 goes another way: is torch older than 2.9?"
    )
    return [passed("torch's grouped product", "is what experts take in bfloat16")]


def times(setting: Setting, name: str, dtype: torch.dtype, is_gradient: bool) -> list[Row]:
    """Milliseconds of each way at the layer's size, after its result was compared."""
    free(setting)
    sizes, num_groups = sizes_of(setting), 4 if setting.toy else NUM_GROUPS
    share = sizes.tokens // num_groups
    torch.manual_seed(0)
    shapes = ((sizes.tokens, sizes.hidden), (num_groups, sizes.inner, sizes.hidden), (sizes.tokens, sizes.inner))
    rows_TI, weight_NOI, grad_TO = (torch.randn(*shape, device=setting.device).to(dtype) for shape in shapes)
    offsets_N = share * torch.arange(1, num_groups + 1, device=setting.device)

    def result(way: backends.Backend) -> Tensor:
        if is_gradient:
            return way.outer(grad_TO, rows_TI, offsets_N, Tensor.new_empty)
        return way.linear(rows_TI, offsets_N, weight_NOI, None)

    works = {title: partial(result, way) for title, way in usable(rows_TI, share).items()}
    right = works["one by one"]().float()
    for title, work in works.items():
        apart = float((work().float() - right).abs().max() / right.abs().max())
        assert apart < 0.02, f"{title}: differs by {apart:.1e} of the largest value"
    repetitions, warmups = (2, 0) if setting.toy else (REPETITIONS, WARMUPS)
    seconds = interleaved(works, repetitions, warmups, setting.device, head_start=True)
    work = 2 * sizes.tokens * sizes.hidden * sizes.inner
    what = f"{name}, {num_groups} groups of {share:,}"
    return [
        measured(f"{what}, {title}", 1000 * median(own), "ms", f"{work / median(own) / 1e12:.0f} TFLOP/s")
        for title, own in seconds.items()
    ]


def usable(rows: Tensor, share: int) -> dict[str, backends.Backend]:
    found = {"one by one": backends.ONE_BY_ONE, "filled groups": backends.padded_backend(share)}
    if (
        rows.dtype == torch.bfloat16
        and hasattr(F, "grouped_mm")
        and device_kind(rows) is DeviceKind.GPU_WITH_GROUPED_MM
    ):
        found["torch's grouped product"] = backends.IN_ONE
    if has_triton(rows) and backends.is_right_by_triton(rows.dtype, rows.device):
        found["Triton"] = backends.BY_TRITON
    return found
