"""Triton kernels of grouped matmul; torch's builds for CUDA include Triton.

They are for GPUs without a kernel of torch's grouped product (A100, L40), and for operands that this kernel does not
support: float16, float32, unaligned widths, very many groups. The number of programs is the most that groups of this
number of rows can need, and each program finds its rows itself. Sums are in float32. `backends.py` imports this module
on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_mtmoe.moe.device_kind import rounds_to_tf32

STEP_BYTES = 128  # of the inner dimension that a program multiplies at a time, the same for every tile size
FEWEST, MOST = 16, 128  # minimum and maximum of a tile's rows


@no_type_check  # Triton reads it, not Python
def _linear(
    rows, offsets, weight, bias, out, num_rows, num_groups, num_outputs, num_inputs,
    stride_group, stride_output, stride_input,
    HAS_BIAS: tl.constexpr,
    GROUPS: tl.constexpr,  # a power of two above the number of groups
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one output tile; tiles of groups come first, then rows without a group."""
    columns_of_tiles = tl.cdiv(num_outputs, COLUMNS)
    tile = tl.program_id(0) // columns_of_tiles
    column = tl.program_id(0) % columns_of_tiles * COLUMNS + tl.arange(0, COLUMNS)

    groups = tl.arange(0, GROUPS)
    end_of = tl.load(offsets + groups, mask=groups < num_groups, other=num_rows).to(tl.int32)
    start_of = tl.load(offsets + groups - 1, mask=(groups > 0) & (groups <= num_groups), other=0).to(tl.int32)
    start_of = tl.where(groups > num_groups, num_rows, start_of)
    tiles = (end_of - start_of + ROWS - 1) // ROWS
    tiles_end = tl.cumsum(tiles, 0)
    is_mine = (tile < tiles_end) & (tile >= tiles_end - tiles)
    group = tl.sum(tl.where(is_mine, groups, 0), 0)
    start = tl.sum(tl.where(is_mine, start_of + (tile - tiles_end + tiles) * ROWS, 0), 0)
    end = tl.sum(tl.where(is_mine, end_of, 0), 0)  # 0 if there is no such tile

    row = start + tl.arange(0, ROWS)
    step = tl.arange(0, STEP)
    is_row, is_column = (row < end)[:, None], (column < num_outputs)[None, :]
    left = rows + row[:, None].to(tl.int64) * num_inputs + step[None, :]
    right = weight + group.to(tl.int64) * stride_group + column[None, :] * stride_output + step[:, None] * stride_input
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    # No steps for rows without a group, which have no matrix, and for tiles without rows.
    steps = tl.where((group < num_groups) & (start < end), tl.cdiv(num_inputs, STEP), 0)
    for done in range(0, steps):
        left_over = num_inputs - done * STEP
        a = tl.load(left, mask=is_row & (step[None, :] < left_over), other=0.0)
        b = tl.load(right, mask=(step[:, None] < left_over) & is_column, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        left += STEP
        right += STEP * stride_input
    if HAS_BIAS:
        biases = tl.where(group < num_groups, num_outputs, 0)
        bias += group.to(tl.int64) * num_outputs
        total += tl.load(bias + column, mask=column < biases, other=0.0)[None, :]
    place = row[:, None].to(tl.int64) * num_outputs + column[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_row & is_column)


@no_type_check
def _outer(
    grad, rows, offsets, out, num_outputs, num_inputs,
    ROWS: tl.constexpr,  # of a tile of the result, which has `num_outputs` rows
    COLUMNS: tl.constexpr, STEP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute one tile of a group's gradient: the sum over the group's rows."""
    tiles_across, tiles_down = tl.cdiv(num_inputs, COLUMNS), tl.cdiv(num_outputs, ROWS)
    group = tl.program_id(0) // (tiles_across * tiles_down)
    tile = tl.program_id(0) % (tiles_across * tiles_down)
    row = tile // tiles_across * ROWS + tl.arange(0, ROWS)
    column = tile % tiles_across * COLUMNS + tl.arange(0, COLUMNS)
    end = tl.load(offsets + group).to(tl.int64)
    start = tl.load(offsets + group - 1, mask=group > 0, other=0).to(tl.int64)

    step = start + tl.arange(0, STEP)
    is_row, is_column = (row < num_outputs)[:, None], (column < num_inputs)[None, :]
    left = grad + step[None, :] * num_outputs + row[:, None]
    right = rows + step[:, None] * num_inputs + column[None, :]
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for done in range(0, tl.cdiv(end - start, STEP)):
        left_over = end - start - done * STEP
        is_left = tl.arange(0, STEP) < left_over
        a = tl.load(left, mask=is_row & is_left[None, :], other=0.0)
        b = tl.load(right, mask=is_left[:, None] & is_column, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
        left += STEP * num_outputs
        right += STEP * num_inputs
    place = (group.to(tl.int64) * num_outputs + row[:, None]) * num_inputs + column[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_row & is_column)


@no_type_check
def _finish(
    out, offsets, bias, num_groups, num_outputs,
    HAS_BIAS: tl.constexpr,
    GROUPS: tl.constexpr,  # a power of two, at least the number of groups
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add the group's bias to one row in place, or clear a row without a group."""
    row = tl.program_id(0)
    groups = tl.arange(0, GROUPS)
    is_after = tl.load(offsets + groups, mask=groups < num_groups, other=row + 1) <= row
    group = tl.sum(is_after.to(tl.int32), 0)
    is_of_none = group == num_groups
    out += row.to(tl.int64) * num_outputs
    bias += group.to(tl.int64) * num_outputs
    # Without a bias only rows without a group change.
    for start in range(0, num_outputs if HAS_BIAS else tl.where(is_of_none, num_outputs, 0), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        is_column = column < num_outputs
        value = tl.zeros((COLUMNS,), dtype=tl.float32)
        if HAS_BIAS:
            is_read = column < tl.where(is_of_none, 0, num_outputs)  # rows without a group are uninitialised
            value = tl.load(out + column, mask=is_read, other=0.0).to(tl.float32)
            value += tl.load(bias + column, mask=is_read, other=0.0).to(tl.float32)
        tl.store(out + column, value.to(out.dtype.element_ty), mask=is_column)


@no_type_check
def _clear_idle(out, offsets, numbers, COLUMNS: tl.constexpr):
    """Clear a part of a group's `numbers` if the group has no rows."""
    group = tl.program_id(1)
    end = tl.load(offsets + group)
    start = tl.load(offsets + group - 1, mask=group > 0, other=0)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    place = out + group.to(tl.int64) * numbers + column
    tl.store(place, tl.zeros((COLUMNS,), out.dtype.element_ty), mask=column < tl.where(start == end, numbers, 0))


@no_type_check
def _sums(
    grad, active, offsets, out, num_outputs, HAS_ACTIVE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Sum columns of a group's rows where `active` is positive; clear other values."""
    group = tl.program_id(1)
    end = tl.load(offsets + group).to(tl.int64)
    start = tl.load(offsets + group - 1, mask=group > 0, other=0).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = start + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(0, tl.cdiv(end - start, ROWS)):
        place = row[:, None] * num_outputs + column[None, :]
        is_here = (row < end)[:, None] & (column < num_outputs)[None, :]
        value = tl.load(grad + place, mask=is_here, other=0.0).to(tl.float32)
        if HAS_ACTIVE:
            value = tl.where(tl.load(active + place, mask=is_here, other=0.0).to(tl.float32) > 0, value, 0.0)
            tl.store(grad + place, value.to(grad.dtype.element_ty), mask=is_here)
        total += value
        row += ROWS
    place = out + group.to(tl.int64) * num_outputs + column
    tl.store(place, tl.sum(total, 0).to(out.dtype.element_ty), mask=column < num_outputs)


@no_type_check
def _fill(rows, offsets, out, max_rows, width, COLUMNS: tl.constexpr):
    """Write one row of a padded group."""
    place, group = tl.program_id(0), tl.program_id(1)
    end = tl.load(offsets + group).to(tl.int64)
    row = tl.load(offsets + group - 1, mask=group > 0, other=0).to(tl.int64) + place
    rows += row * width
    out += (group.to(tl.int64) * max_rows + place) * width
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        value = tl.load(rows + column, mask=column < tl.where(row < end, width, 0), other=0.0)
        tl.store(out + column, value, mask=column < width)


@no_type_check
def _take(filled, offsets, out, num_groups, max_rows, width, GROUPS: tl.constexpr, COLUMNS: tl.constexpr):
    """Read one row from its padded group; 0 without a group."""
    row = tl.program_id(0)
    groups = tl.arange(0, GROUPS)
    is_after = tl.load(offsets + groups, mask=groups < num_groups, other=row + 1) <= row
    group = tl.sum(is_after.to(tl.int32), 0)
    first = tl.load(offsets + group - 1, mask=group > 0, other=0).to(tl.int64)
    filled += (group.to(tl.int64) * max_rows + row - first) * width
    out += row.to(tl.int64) * width
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        value = tl.load(filled + column, mask=column < tl.where(group == num_groups, 0, width), other=0.0)
        tl.store(out + column, value, mask=column < width)


def _tuned(function: Any, tiles: Sequence[dict[str, int]], key: Sequence[str]) -> Any:
    """Return a kernel that tunes its tile for new values of the `key` arguments."""
    kernel = triton.jit(function, do_not_specialize=["num_rows"])  # changes with each batch
    if not isinstance(kernel, triton.JITFunction):
        return _Interpreted(kernel, tiles[0])
    configurations = [triton.Config(tile, num_warps=warps, num_stages=3) for tile in tiles for warps in (4, 8)]
    return triton.autotune(configurations, key=list(key))(kernel)


@dataclass(frozen=True)
class _Interpreted:
    """A kernel in Triton's interpreter on a CPU, for tests, without tuning."""

    kernel: Any
    tile: dict[str, int]

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return partial(self.kernel[grid], **self.tile)


SIZES = ("num_outputs", "num_inputs")
_linear_kernel = _tuned(_linear, [{"COLUMNS": 64}, {"COLUMNS": 128}], (*SIZES, "ROWS", "stride_input"))
_finish_kernel = triton.jit(_finish)
_clear_kernel = triton.jit(_clear_idle)
_sums_kernel = triton.jit(_sums)
_fill_kernel = triton.jit(_fill)
_take_kernel = triton.jit(_take)
_outer_kernel = _tuned(_outer, [{"ROWS": 64, "COLUMNS": 64}, {"ROWS": 128, "COLUMNS": 128}], SIZES)


def linear(rows: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return each row times its group's matrix, plus bias; see `Backend`."""
    rows = rows.contiguous()
    (num_rows, num_inputs), (num_groups, num_outputs) = rows.shape, weight.shape[:2]
    out = rows.new_empty(num_rows, num_outputs)
    if out.numel() == 0:
        return out
    per_tile = min(max(triton.next_power_of_2(num_rows // num_groups), FEWEST), MOST)
    most_tiles = num_rows // per_tile + num_groups + 1  # each group's last tile may be smaller
    with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
        _linear_kernel[lambda tile: (most_tiles * triton.cdiv(num_outputs, tile["COLUMNS"]),)](
            rows, offsets, weight, weight if bias is None else bias.contiguous(), out,
            num_rows, num_groups, num_outputs, num_inputs, *weight.stride(),
            HAS_BIAS=bias is not None, GROUPS=triton.next_power_of_2(num_groups + 1), ROWS=per_tile,
            STEP=STEP_BYTES // rows.element_size(), PRECISION="tf32" if rounds_to_tf32() else "ieee",
        )  # fmt: skip
    return out


def finish_(out: Tensor, offsets: Tensor, bias: Tensor | None) -> Tensor:
    """Add each group's bias, if any, in place, (T, O); clear rows without a group."""
    assert out.is_contiguous()
    if out.numel() == 0:
        return out
    with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
        _finish_kernel[(len(out),)](
            out, offsets, out if bias is None else bias.contiguous(), len(offsets), out.shape[1],
            HAS_BIAS=bias is not None, GROUPS=triton.next_power_of_2(len(offsets)), COLUMNS=1024,
        )  # fmt: skip
    return out


def filled_up(rows: Tensor, offsets: Tensor, max_rows: int) -> Tensor:
    rows = rows.contiguous()
    out = rows.new_empty(len(offsets), max_rows, rows.shape[1])
    if out.numel() > 0:
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
            _fill_kernel[(max_rows, len(offsets))](rows, offsets, out, max_rows, rows.shape[1], COLUMNS=1024)
    return out


def taken_out(filled: Tensor, offsets: Tensor, num_rows: int) -> Tensor:
    filled = filled.contiguous()
    num_groups, max_rows, width = filled.shape
    out = filled.new_empty(num_rows, width)
    if out.numel() > 0:
        with torch.cuda.device_of(filled):  # type: ignore[no-untyped-call]
            _take_kernel[(num_rows,)](
                filled, offsets, out, num_groups, max_rows, width,
                GROUPS=triton.next_power_of_2(num_groups), COLUMNS=1024,
            )  # fmt: skip
    return out


def clear_idle_(out: Tensor, offsets: Tensor) -> Tensor:
    """Clear the products, (N, O, I), of groups without rows in place."""
    assert out.is_contiguous()
    if out.numel() > 0:
        numbers = out[0].numel()
        with torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
            _clear_kernel[(triton.cdiv(numbers, 4096), len(out))](out, offsets, numbers, COLUMNS=4096)
    return out


def sums(grad: Tensor, offsets: Tensor, active: Tensor | None = None) -> Tensor:
    """Return the sum of each group's rows, (N, O).

    With `active`, `grad` is first cleared in place where `active` is not positive.
    """
    assert grad.is_contiguous() or active is None
    grad = grad.contiguous()
    out = grad.new_empty(len(offsets), grad.shape[1])
    if out.numel() > 0:
        with torch.cuda.device_of(grad):  # type: ignore[no-untyped-call]
            _sums_kernel[(triton.cdiv(grad.shape[1], 64), len(offsets))](
                grad, grad if active is None else active.contiguous(), offsets, out, grad.shape[1],
                HAS_ACTIVE=active is not None, ROWS=64, COLUMNS=64,
            )  # fmt: skip
    return out


def relu_gradient_(grad: Tensor, active: Tensor, offsets: Tensor) -> Tensor:
    return sums(grad, offsets, active)


def outer(grad: Tensor, rows: Tensor, offsets: Tensor, new: Callable[[Tensor, Sequence[int]], Tensor]) -> Tensor:
    grad, rows = grad.contiguous(), rows.contiguous()
    num_groups, num_outputs, num_inputs = len(offsets), grad.shape[1], rows.shape[1]
    out = new(grad, (num_groups, num_outputs, num_inputs))

    def grid(tile: dict[str, int]) -> tuple[int]:
        return (num_groups * triton.cdiv(num_outputs, tile["ROWS"]) * triton.cdiv(num_inputs, tile["COLUMNS"]),)

    with torch.cuda.device_of(grad):  # type: ignore[no-untyped-call]
        _outer_kernel[grid](
            grad, rows, offsets, out, num_outputs, num_inputs,
            STEP=STEP_BYTES // grad.element_size(), PRECISION="tf32" if rounds_to_tf32() else "ieee",
        )  # fmt: skip
    return out
