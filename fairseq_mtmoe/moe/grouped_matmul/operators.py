"""Products of groups of rows with a matrix each: what experts and task gates compute.

Rows come sorted by group, `ends_N` says where each group ends. Every group is a product of its own, written straight
into its slice of the result: no padding, no copies, nothing for groups without rows. There are four ways to the same
result, and tests compare them: one product after the other, anywhere; all in one call of MKL, on a CPU; torch's grouped
product in one kernel, on a GPU; and one product of groups filled up to equal sizes, on a GPU without that kernel, if it
is known what no group has more of. The last two do not wait for the ends. They are registered with torch as operators,
so that `torch.compile` passes through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fairseq_mtmoe.moe.form import Form, form_for
from fairseq_mtmoe.moe.grouped_matmul.gradient_buffers import SpareMemory
from fairseq_mtmoe.moe.grouped_matmul.mkl_batch import Operand, batched_products, has_batched_products

GROUPED_MM_ALIGNMENT = 16  # bytes, of a row of any operand
NewEmpty = Callable[[Tensor, Sequence[int]], Tensor]
PIECE = 256  # rows of a large group that one core computes at a time
SLICES = 4  # of a weight's gradient where few groups have most of the rows, half as many elsewhere


def grouped_linear(
    rows_TI: Tensor, ends_N: Tensor, weight_NOI: Tensor, bias_NO: Tensor | None = None, most: int | None = None
) -> Tensor:
    """Each row times the matrix of its group, plus its bias: (T, I) to (T, O); 0 in rows after the last group.

    Args:
        rows_TI: rows sorted by group.
        ends_N: the row at which each group ends, (N,), long, not falling, at most T; for rows on a GPU it may be on the
            CPU where `reads_ends` says so.
        weight_NOI: a matrix for each group; views of it are read, it is never copied.
        bias_NO: a bias for each group.
        most: rows that no group has more of, if that is known without looking.

    In backward, a group without rows gets a gradient of 0. Under autocast all operands are cast as for a linear layer.
    """
    if bias_NO is None:
        rows_TI, weight_NOI = _as_autocast_wants(rows_TI, weight_NOI)
    else:
        rows_TI, weight_NOI, bias_NO = _as_autocast_wants(rows_TI, weight_NOI, bias_NO)
    product: Tensor = _linear(rows_TI, ends_at_hand(ends_N, rows_TI, weight_NOI, most), weight_NOI, bias_NO, most)
    return product


def grouped_relu_network(
    rows_TH: Tensor,
    ends_N: Tensor,
    fc1_weight: Tensor,
    fc1_bias: Tensor,
    fc2_weight: Tensor,
    fc2_bias: Tensor,
    spares: SpareMemory | None = None,
    most: int | None = None,
) -> Tensor:
    """`grouped_linear`, relu, `grouped_linear`; the same numbers, with less memory written and kept in between.

    `spares`, if given, is where the gradients of the weights are written.
    """
    operands = _as_autocast_wants(rows_TH, fc1_weight, fc1_bias, fc2_weight, fc2_bias)
    ends_N = ends_at_hand(ends_N, operands[0], operands[1], most)
    output: Tensor = _ReluNetwork.apply(spares, most, ends_N, *operands)  # type: ignore[no-untyped-call]
    return output


def reads_ends(rows: Tensor, weight: Tensor, most: int | None = None) -> bool:
    """Whether the host reads where the groups of rows on a GPU end, which it must wait for unless it knows already."""
    if form_for(rows).has_values_at_hand:
        return False
    operands = _as_autocast_wants(rows[:0], weight[:0])  # their types and widths, without casting values
    return _way_for(*operands, most=most) is ONE_BY_ONE


def ends_at_hand(ends: Tensor, rows: Tensor, weight: Tensor, most: int | None) -> Tensor:
    """The ends where they will be read: brought to the host once, for the backward pass and further products too."""
    return ends if torch.compiler.is_compiling() or not reads_ends(rows, weight, most) else ends.cpu()


class _ReluNetwork(torch.autograd.Function):
    """Inner values and their gradients are overwritten in place, which autograd cannot do by itself."""

    @staticmethod
    def forward(
        ctx: Any,
        spares: SpareMemory | None,
        most: int | None,
        ends: Tensor,
        rows: Tensor,
        weight1: Tensor,
        bias1: Tensor,
        weight2: Tensor,
        bias2: Tensor,
    ) -> Tensor:
        inner = _linear(rows, ends, weight1, bias1, most).relu_()
        ctx.save_for_backward(ends, rows, weight1, weight2, inner)
        ctx.spares, ctx.most = spares, most
        output: Tensor = _linear(inner, ends, weight2, bias2, most)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ends, rows, weight1, weight2, inner = ctx.saved_tensors
        _, _, _, wants_rows, *wants = ctx.needs_input_grad
        grad, most = grad.contiguous(), ctx.most
        grad_weight2 = _weight_gradient(grad, inner, ends, most, ctx.spares) if wants[2] else None
        grad_bias2 = _sum(grad, ends) if wants[3] else None
        grad_inner = _linear(grad, ends, weight2.transpose(1, 2), None, most)
        torch.ops.aten.threshold_backward.grad_input(grad_inner, inner, 0, grad_input=grad_inner)
        grad_weight1 = _weight_gradient(grad_inner, rows, ends, most, ctx.spares) if wants[0] else None
        grad_bias1 = _sum(grad_inner, ends) if wants[1] else None
        grad_rows = _linear(grad_inner, ends, weight1.transpose(1, 2), None, most) if wants_rows else None
        return None, None, None, grad_rows, grad_weight1, grad_bias1, grad_weight2, grad_bias2


def _weight_gradient(grad: Tensor, rows: Tensor, ends: Tensor, most: int | None, spares: SpareMemory | None) -> Tensor:
    if spares is None or torch.compiler.is_compiling():
        outer: Tensor = _outer(grad, rows, ends, most)
        return outer
    return _way_for(grad, rows, most=most).outer(grad, rows, ends, spares.new_empty)


def _as_autocast_wants(rows: Tensor, *weights: Tensor) -> list[Tensor]:
    device = rows.device.type
    if not torch.is_autocast_enabled(device):
        return [rows, *weights]
    dtype = torch.get_autocast_dtype(device)
    return [tensor.to(dtype) for tensor in (rows, *weights)]


@torch.library.custom_op("mtmoe::grouped_linear", mutates_args=())
def _linear(rows: Tensor, ends: Tensor, weight: Tensor, bias: Tensor | None, most: int | None) -> Tensor:
    return _way_for(rows, weight, most=most).linear(rows, ends, weight, bias)


@torch.library.custom_op("mtmoe::grouped_outer", mutates_args=())
def _outer(grad: Tensor, rows: Tensor, ends: Tensor, most: int | None) -> Tensor:
    """The gradient of the weights, (N, O, I): the sum over each group's rows of `grad_O · row_I`."""
    return _way_for(grad, rows, most=most).outer(grad, rows, ends, Tensor.new_empty)


@torch.library.custom_op("mtmoe::grouped_sum", mutates_args=())
def _sum(grad: Tensor, ends: Tensor) -> Tensor:
    """The gradient of the biases, (N, O): the sum over each group's rows."""
    at_hand = form_for(grad).has_values_at_hand or ends.device != grad.device
    return (sum_one_by_one if at_hand else sum_in_one)(grad, ends)


@dataclass(frozen=True)
class Way:
    """One way to compute `linear(rows, ends, weight, bias)` and the weights' gradient, `outer(grad, rows, ends, new)`.

    `new(like, shape)` makes the tensor for the gradient, if this way can choose where it is written.
    """

    linear: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
    outer: Callable[[Tensor, Tensor, Tensor, NewEmpty], Tensor]


def _linear_one_by_one(rows: Tensor, ends: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = rows.new_empty(len(rows), weight.shape[1])
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            matrix = weight[group].t()
            if bias is None:
                torch.mm(rows[start:end], matrix, out=out[start:end])
            else:
                torch.addmm(bias[group], rows[start:end], matrix, out=out[start:end])
        start = end
    out[start:].zero_()
    return out


def _outer_one_by_one(grad: Tensor, rows: Tensor, ends: Tensor, new: NewEmpty) -> Tensor:
    out = new(grad, (len(ends), grad.shape[1], rows.shape[1]))
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            torch.mm(grad[start:end].t(), rows[start:end], out=out[group])
        else:
            out[group].zero_()
        start = end
    return out


def _linear_batched(rows: Tensor, ends: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = rows.contiguous()
    num_outputs, num_inputs = weight.shape[1:]
    # The gradient's product comes with the weights transposed: they are read as they lie.
    by_inputs = weight.stride(1) == 1 and weight.stride(2) >= num_outputs
    if not by_inputs and not (weight.stride(2) == 1 and weight.stride(1) >= num_inputs):
        weight = weight.contiguous()
    out = rows.new_empty(len(rows), num_outputs)
    counts = ends.diff(prepend=ends.new_zeros(1))
    out[int(ends[-1]) :].zero_()
    pieces = (counts + PIECE - 1) // PIECE
    group = torch.repeat_interleave(pieces)
    place = torch.arange(len(group), device=group.device) - (pieces.cumsum(0) - pieces)[group]
    start = (ends - counts)[group] + place * PIECE
    batched_products(
        Operand(rows, start * num_inputs, num_inputs),
        Operand(weight, group * weight.stride(0), weight.stride(2 if by_inputs else 1), transposed=not by_inputs),
        Operand(out, start * num_outputs, num_outputs),
        rows=(ends[group] - start).clamp(max=PIECE),
        columns=torch.full_like(group, num_outputs),
        inner=torch.full_like(group, num_inputs),
    )
    if bias is not None:
        for bias_O, part in zip(bias, out.tensor_split(ends), strict=False):  # the last part belongs to no group
            part += bias_O
    return out


def _outer_batched(grad: Tensor, rows: Tensor, ends: Tensor, new: NewEmpty) -> Tensor:
    grad, rows = grad.contiguous(), rows.contiguous()
    num_outputs, num_inputs = grad.shape[1], rows.shape[1]
    out = new(grad, (len(ends), num_outputs, num_inputs))
    counts = ends.diff(prepend=ends.new_zeros(1))
    for idle in (counts == 0).nonzero().squeeze(1).tolist():
        out[idle].zero_()
    uneven = int(counts.max()) * 2 * torch.get_num_threads() > len(rows)
    slices = SLICES if uneven else SLICES // 2
    slices = slices if num_outputs % slices == 0 else 1
    height = num_outputs // slices
    group = counts.nonzero().squeeze(1).repeat_interleave(slices)
    top = torch.arange(slices, device=group.device).repeat(len(group) // slices) * height
    start = (ends - counts)[group]
    batched_products(
        Operand(grad, start * num_outputs + top, num_outputs, transposed=True),
        Operand(rows, start * num_inputs, num_inputs),
        Operand(out, (group * num_outputs + top) * num_inputs, num_inputs),
        rows=torch.full_like(group, height),
        columns=torch.full_like(group, num_inputs),
        inner=counts[group],
    )
    return out


def _linear_in_one(rows: Tensor, ends: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if len(rows) == 0:
        return rows.new_zeros(0, weight.shape[1])
    out = F.grouped_mm(rows, weight.transpose(1, 2), offs=ends.int())
    group = _group_of_rows(len(rows), ends)
    if bias is not None:
        out = out + bias.index_select(0, group.clamp(max=len(ends) - 1))
    return out.masked_fill((group == len(ends)).unsqueeze(1), 0)


def _outer_in_one(grad: Tensor, rows: Tensor, ends: Tensor, new: NewEmpty) -> Tensor:
    if len(rows) == 0:
        return grad.new_zeros(len(ends), grad.shape[1], rows.shape[1])
    out = F.grouped_mm(grad.t(), rows, offs=ends.int())
    # Some kernels leave the products of no rows as they find them (pytorch#172439).
    idle_N = ends.diff(prepend=ends.new_zeros(1)) == 0
    return out.masked_fill(idle_N.view(-1, 1, 1), 0)


def _linear_filled(most: int, rows: Tensor, ends: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if len(rows) == 0:
        return rows.new_zeros(0, weight.shape[1])
    rows_NCI, matrices = _filled_up(rows, ends, most), weight.transpose(1, 2)
    out_NCO = torch.bmm(rows_NCI, matrices) if bias is None else torch.baddbmm(bias.unsqueeze(1), rows_NCI, matrices)
    group = _group_of_rows(len(rows), ends)
    none, group = group == len(ends), group.clamp(max=len(ends) - 1)
    place = torch.arange(len(rows), device=rows.device) - _starts(ends)[group]
    filled = (group * most + place).masked_fill(none, 0)
    return out_NCO.flatten(0, 1).index_select(0, filled).masked_fill_(none.unsqueeze(1), 0)


def _outer_filled(most: int, grad: Tensor, rows: Tensor, ends: Tensor, new: NewEmpty) -> Tensor:
    if len(rows) == 0:
        return grad.new_zeros(len(ends), grad.shape[1], rows.shape[1])
    out = new(grad, (len(ends), grad.shape[1], rows.shape[1]))
    return torch.bmm(_filled_up(grad, ends, most).mT, _filled_up(rows, ends, most), out=out)


def _filled_up(rows: Tensor, ends: Tensor, most: int) -> Tensor:
    """Each group's rows, filled up to `most` with zeros: (N, most, I)."""
    places_NC = _starts(ends).unsqueeze(1) + torch.arange(most, device=rows.device)
    filled = rows.index_select(0, places_NC.clamp(max=len(rows) - 1).view(-1)).view(*places_NC.shape, -1)
    return filled.masked_fill_((places_NC >= ends.unsqueeze(1)).unsqueeze(2), 0)


def _starts(ends: Tensor) -> Tensor:
    """Where each group begins, (N,): at the end of the one before."""
    return torch.cat([ends.new_zeros(1), ends[:-1]])


def sum_one_by_one(grad: Tensor, ends: Tensor) -> Tensor:
    """The sum of each group's rows, one after the other."""
    out = grad.new_empty(len(ends), grad.shape[1])
    start = 0
    for group, end in enumerate(ends.tolist()):
        torch.sum(grad[start:end], 0, out=out[group])
        start = end
    return out


def sum_in_one(grad: Tensor, ends: Tensor) -> Tensor:
    """The sum of each group's rows as one product with the groups' indicators."""
    groups = torch.arange(len(ends), device=grad.device)
    member_NT = groups.unsqueeze(1) == _group_of_rows(len(grad), ends)
    return member_NT.to(grad.dtype) @ grad


def _group_of_rows(num_rows: int, ends: Tensor) -> Tensor:
    """The group of each row, (T,); N after the last group."""
    return torch.searchsorted(ends, torch.arange(num_rows, device=ends.device), right=True)


ONE_BY_ONE = Way(_linear_one_by_one, _outer_one_by_one)
BATCHED = Way(_linear_batched, _outer_batched)
IN_ONE = Way(_linear_in_one, _outer_in_one)


def filled_way(most: int) -> Way:
    """One product of groups filled up to equal sizes, `most` rows; the result may be written anywhere."""
    return Way(partial(_linear_filled, most), partial(_outer_filled, most))


def _way_for(*operands: Tensor, most: int | None = None) -> Way:
    """The fastest way for operands of this type and device, in groups of at most so many rows, if that is known."""
    form = form_for(operands[0])
    if form is Form.CPU:
        return BATCHED if has_batched_products(*operands) else ONE_BY_ONE
    if form is Form.GPU_WITH_GROUPED_MM and _takes_grouped_mm(*operands):
        return IN_ONE
    return ONE_BY_ONE if most is None else filled_way(most)


def _takes_grouped_mm(*operands: Tensor) -> bool:
    """Whether torch's grouped product takes such operands, and those of its gradients."""
    first = operands[0]
    if first.dtype != torch.bfloat16 or not hasattr(F, "grouped_mm"):
        return False
    per_step = GROUPED_MM_ALIGNMENT // first.element_size()
    return all(size % per_step == 0 for operand in operands for size in operand.shape[1:])


@_linear.register_fake
def _(rows: Tensor, ends: Tensor, weight: Tensor, bias: Tensor | None, most: int | None) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


@_outer.register_fake
def _(grad: Tensor, rows: Tensor, ends: Tensor, most: int | None) -> Tensor:
    return grad.new_empty(ends.shape[0], grad.shape[1], rows.shape[1])


@_sum.register_fake
def _(grad: Tensor, ends: Tensor) -> Tensor:
    return grad.new_empty(ends.shape[0], grad.shape[1])


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, int | None], output: Tensor) -> None:
    rows, ends, weight, _, most = inputs
    ctx.save_for_backward(rows, ends, weight)
    ctx.most = most


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None, Tensor | None, None]:
    rows, ends, weight = ctx.saved_tensors
    wants_rows, _, wants_weight, wants_bias, _ = ctx.needs_input_grad
    grad = grad.contiguous()
    return (
        _linear(grad, ends, weight.transpose(1, 2), None, ctx.most) if wants_rows else None,
        None,
        _outer(grad, rows, ends, ctx.most) if wants_weight else None,
        _sum(grad, ends) if wants_bias else None,
        None,
    )


_linear.register_autograd(_backward, setup_context=_remember)
