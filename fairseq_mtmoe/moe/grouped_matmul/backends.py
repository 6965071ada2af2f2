"""Backends of grouped matmul, and the choice of the fastest one.

There are four: one product after the other, on any device; all products in one call of MKL, on a
CPU; torch's grouped product in one kernel, on a GPU; and, on GPUs without this kernel, one product
of groups padded to equal sizes, if an upper bound of their rows is known. The last two do not
synchronise to read the offsets. Tests compare all four.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from fairseq_mtmoe.moe.device_kind import DeviceKind, device_kind
from fairseq_mtmoe.moe.grouped_matmul.mkl_batch import (
    Operand,
    batched_products,
    has_batched_products,
)

GROUPED_MM_ALIGNMENT = 16  # bytes, for rows of all operands
GROUPED_MM_GROUPS = 1023  # the maximum of torch's grouped product
PIECE = 256  # rows of a large group that a core computes at a time
FEW_NUMBERS = 2**16  # up to this number, biases are gathered in one call instead of copied by group
# Slices of a weight's gradient for several cores, if few groups have most rows; else half.
SLICES = 4
NewEmpty = Callable[[Tensor, Sequence[int]], Tensor]


@dataclass(frozen=True)
class Backend:
    """A grouped matmul and its weight gradient.

    `linear(rows, offsets, weight, bias)` and `outer(grad, rows, offsets, new_empty)`; `new_empty`
    allocates the gradient, if the backend can choose its memory.
    """

    linear: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
    outer: Callable[[Tensor, Tensor, Tensor, NewEmpty], Tensor]


def _linear_one_by_one(
    rows: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    out = rows.new_empty(len(rows), weight.shape[1])
    start = 0
    for group, end in enumerate(offsets.tolist()):
        if end > start:
            matrix = weight[group].t()
            if bias is None:
                torch.mm(rows[start:end], matrix, out=out[start:end])
            else:
                torch.addmm(bias[group], rows[start:end], matrix, out=out[start:end])
        start = end
    out[start:].zero_()
    return out


def _outer_one_by_one(grad: Tensor, rows: Tensor, offsets: Tensor, new: NewEmpty) -> Tensor:
    out = new(grad, (len(offsets), grad.shape[1], rows.shape[1]))
    start = 0
    for group, end in enumerate(offsets.tolist()):
        if end > start:
            torch.mm(grad[start:end].t(), rows[start:end], out=out[group])
        else:
            out[group].zero_()
        start = end
    return out


def _linear_batched(rows: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = rows.contiguous()
    num_outputs, num_inputs = weight.shape[1:]
    # In the backward pass weights come transposed; they are read without a copy.
    by_inputs = weight.stride(1) == 1 and weight.stride(2) >= num_outputs
    if not by_inputs and not (weight.stride(2) == 1 and weight.stride(1) >= num_inputs):
        weight = weight.contiguous()
    ends = offsets.tolist()
    if bias is None or len(rows) * num_outputs > FEW_NUMBERS:
        out = rows.new_empty(len(rows), num_outputs)
        if bias is not None:
            for bias_O, part in zip(bias, out.tensor_split(offsets), strict=False):
                part.copy_(bias_O)
    else:
        out = bias.index_select(0, _group_of_rows(len(rows), offsets).clamp_(max=len(ends) - 1))
    if ends[-1] < len(rows):  # rows without a group
        out[ends[-1] :].zero_()
    # Each piece reads the whole matrix, so a single core takes every group in one piece.
    size = PIECE if torch.get_num_threads() > 1 else max(len(rows), 1)
    groups = []
    starts = []
    counts = []
    begin = 0
    for group, end in enumerate(ends):
        for start in range(begin, end, size):
            groups.append(group * weight.stride(0))
            starts.append(start)
            counts.append(min(size, end - start))
        begin = end
    stride = weight.stride(2 if by_inputs else 1)
    row_starts = [start * num_inputs for start in starts]
    out_starts = [start * num_outputs for start in starts]
    batched_products(
        Operand(rows, row_starts, num_inputs),
        Operand(weight, groups, stride, transposed=not by_inputs),
        Operand(out, out_starts, num_outputs),
        rows=counts, columns=num_outputs, inner=num_inputs, adds=bias is not None,
    )  # fmt: skip
    return out


def _outer_batched(grad: Tensor, rows: Tensor, offsets: Tensor, new: NewEmpty) -> Tensor:
    grad = grad.contiguous()
    rows = rows.contiguous()
    num_outputs = grad.shape[1]
    num_inputs = rows.shape[1]
    out = new(grad, (len(offsets), num_outputs, num_inputs))
    ends = offsets.tolist()
    counts = [end - start for start, end in pairwise([0, *ends])]
    height = num_outputs // _slices(counts, len(rows), num_outputs)
    grad_starts = []
    row_starts = []
    out_starts = []
    inner = []
    for group, (end, count) in enumerate(zip(ends, counts, strict=True)):
        if count == 0:
            out[group].zero_()
            continue
        for top in range(0, num_outputs, height):
            grad_starts.append((end - count) * num_outputs + top)
            row_starts.append((end - count) * num_inputs)
            out_starts.append((group * num_outputs + top) * num_inputs)
            inner.append(count)
    batched_products(
        Operand(grad, grad_starts, num_outputs, transposed=True),
        Operand(rows, row_starts, num_inputs),
        Operand(out, out_starts, num_inputs),
        rows=height, columns=num_inputs, inner=inner,
    )  # fmt: skip
    return out


def _slices(counts: list[int], num_rows: int, num_outputs: int) -> int:
    """Return the number of slices of each group's gradient, for several cores."""
    threads = torch.get_num_threads()
    slices = SLICES if max(counts) * 2 * threads > num_rows else SLICES // 2
    return slices if threads > 1 and num_outputs % slices == 0 else 1


def _linear_in_one(rows: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if len(rows) == 0:
        return rows.new_zeros(0, weight.shape[1])
    out = F.grouped_mm(rows, weight.transpose(1, 2), offs=offsets.int())
    group = _group_of_rows(len(out), offsets)
    if bias is not None:
        out += bias.index_select(0, group.clamp(max=len(offsets) - 1))
    return out.masked_fill_((group == len(offsets)).unsqueeze(1), 0)


def _outer_in_one(grad: Tensor, rows: Tensor, offsets: Tensor, new: NewEmpty) -> Tensor:
    if len(rows) == 0:
        return grad.new_zeros(len(offsets), grad.shape[1], rows.shape[1])
    out = F.grouped_mm(grad.t(), rows, offs=offsets.int())
    # Some kernels do not write the products of groups without rows (pytorch#172439).
    idle_N = offsets.diff(prepend=offsets.new_zeros(1)) == 0
    return out.masked_fill(idle_N.view(-1, 1, 1), 0)


def _linear_filled(
    max_rows: int, rows: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None
) -> Tensor:
    if len(rows) == 0:
        return rows.new_zeros(0, weight.shape[1])
    rows_NCI = filled_up(rows, offsets, max_rows)
    matrices = weight.transpose(1, 2)
    if bias is None:
        return taken_out(torch.bmm(rows_NCI, matrices), offsets, len(rows))
    out_NCO = torch.baddbmm(bias.unsqueeze(1), rows_NCI, matrices)
    return taken_out(out_NCO, offsets, len(rows))


def _outer_filled(
    max_rows: int, grad: Tensor, rows: Tensor, offsets: Tensor, new: NewEmpty
) -> Tensor:
    if len(rows) == 0:
        return grad.new_zeros(len(offsets), grad.shape[1], rows.shape[1])
    out = new(grad, (len(offsets), grad.shape[1], rows.shape[1]))
    grad_NOC = filled_up(grad, offsets, max_rows).mT
    return torch.bmm(grad_NOC, filled_up(rows, offsets, max_rows), out=out)


def filled_up(rows: Tensor, offsets: Tensor, max_rows: int) -> Tensor:
    """Return each group's rows, padded to `max_rows` with zeros: (N, max_rows, I)."""
    row_NC = _starts(offsets).unsqueeze(1) + torch.arange(max_rows, device=rows.device)
    filled = rows.index_select(0, row_NC.clamp(max=len(rows) - 1).view(-1)).view(*row_NC.shape, -1)
    return filled.masked_fill_((row_NC >= offsets.unsqueeze(1)).unsqueeze(2), 0)


def taken_out(filled_NCO: Tensor, offsets: Tensor, num_rows: int) -> Tensor:
    """Return the rows of padded groups in order, (T, O); 0 in rows without a group."""
    group = _group_of_rows(num_rows, offsets)
    none = group == len(offsets)
    group = group.clamp(max=len(offsets) - 1)
    position = torch.arange(num_rows, device=offsets.device) - _starts(offsets)[group]
    filled = (group * filled_NCO.shape[1] + position).masked_fill(none, 0)
    return filled_NCO.flatten(0, 1).index_select(0, filled).masked_fill_(none.unsqueeze(1), 0)


def _starts(offsets: Tensor) -> Tensor:
    """Return the first row of each group, (N,)."""
    return torch.cat([offsets.new_zeros(1), offsets[:-1]])


def sum_one_by_one(grad: Tensor, offsets: Tensor) -> Tensor:
    """Return the sum of each group's rows, one after the other."""
    out = grad.new_empty(len(offsets), grad.shape[1])
    start = 0
    for group, end in enumerate(offsets.tolist()):
        torch.sum(grad[start:end], 0, out=out[group])
        start = end
    return out


def sum_in_one(grad: Tensor, offsets: Tensor) -> Tensor:
    """Return the sum of each group's rows, a product with the groups' indicators."""
    groups = torch.arange(len(offsets), device=grad.device)
    member_NT = groups.unsqueeze(1) == _group_of_rows(len(grad), offsets)
    return member_NT.to(grad.dtype) @ grad


def _group_of_rows(num_rows: int, offsets: Tensor) -> Tensor:
    """Return the group of each row, (T,); N after the last group."""
    row_T = torch.arange(num_rows, dtype=offsets.dtype, device=offsets.device)
    return torch.searchsorted(offsets, row_T, right=True)


ONE_BY_ONE = Backend(_linear_one_by_one, _outer_one_by_one)
BATCHED = Backend(_linear_batched, _outer_batched)
IN_ONE = Backend(_linear_in_one, _outer_in_one)


def padded_backend(max_rows: int) -> Backend:
    """Return the backend of one product of groups padded to `max_rows` rows."""
    return Backend(partial(_linear_filled, max_rows), partial(_outer_filled, max_rows))


def backend_for(
    *operands: Tensor, groups: int, max_rows: int | None = None, dtype: torch.dtype | None = None
) -> Backend:
    """Return the fastest backend for operands, rows first.

    dtype: the type that they will be cast to. max_rows: upper bound of a group's rows, if known.
    """
    first = operands[0]
    kind = device_kind(first)
    dtype = dtype or first.dtype
    if kind is DeviceKind.CPU:
        return BATCHED if has_batched_products(*operands) else ONE_BY_ONE
    if (
        kind is DeviceKind.GPU_WITH_GROUPED_MM
        and groups <= GROUPED_MM_GROUPS
        and _takes_grouped_mm(dtype, operands)
    ):
        return IN_ONE
    return ONE_BY_ONE if max_rows is None else padded_backend(max_rows)


def _takes_grouped_mm(dtype: torch.dtype, operands: Sequence[Tensor]) -> bool:
    """Return whether torch's grouped product supports operands and gradients."""
    if dtype != torch.bfloat16 or not hasattr(F, "grouped_mm"):
        return False
    per_step = GROUPED_MM_ALIGNMENT // dtype.itemsize
    return all(size % per_step == 0 for operand in operands for size in operand.shape[1:])
