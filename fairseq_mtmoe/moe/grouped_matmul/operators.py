"""Grouped matmul as torch operators with gradients, for experts and task gates.

Rows are sorted by group, and `offsets_N` has the end of each group. Every group is written
directly into its slice of the result, without padding or copies. `torch.compile` is supported.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fairseq_mtmoe.moe.device_kind import device_kind
from fairseq_mtmoe.moe.grouped_matmul import backends
from fairseq_mtmoe.moe.grouped_matmul.backends import ONE_BY_ONE, Backend, backend_for
from fairseq_mtmoe.moe.grouped_matmul.gradient_buffers import GradientBufferPool

ACTIVATIONS: tuple[Callable[[Tensor], Tensor], ...] = (F.relu, F.gelu)


def grouped_linear(
    rows_TI: Tensor,
    offsets_N: Tensor,
    weight_NOI: Tensor,
    bias_NO: Tensor | None = None,
    max_rows: int | None = None,
) -> Tensor:
    """Return each row times its group's matrix, plus bias: (T, I) to (T, O).

    Rows after the last group are 0.

    Args:
        rows_TI: rows sorted by group.
        offsets_N: the end of each group, (N,), long, non-decreasing, at most T; for rows on a GPU
            they may be on the host (see `offsets_at_hand`).
        weight_NOI: a matrix for each group, read as views without a copy.
        bias_NO: a bias for each group.
        max_rows: upper bound of a group's number of rows, if known without synchronisation.

    A group without rows gets a gradient of 0. Under autocast, operands are cast as for a linear
    layer.
    """
    dtype = computed_dtype(rows_TI)
    offsets_N = offsets_at_hand(offsets_N, rows_TI, weight_NOI, max_rows)
    if bias_NO is not None:
        bias_NO = bias_NO.to(dtype)
    return _product(rows_TI.to(dtype), offsets_N, weight_NOI.to(dtype), bias_NO, max_rows)


def grouped_network(
    activation: Callable[[Tensor], Tensor],
    rows_TH: Tensor,
    offsets_N: Tensor,
    fc1_weight: Tensor,
    fc1_bias: Tensor,
    fc2_weight: Tensor,
    fc2_bias: Tensor,
    buffers: GradientBufferPool | None = None,
    max_rows: int | None = None,
) -> Tensor:
    """Compute two `grouped_linear` with one of the `ACTIVATIONS` between them.

    buffers: allocates the weights' gradients.
    """
    dtype = computed_dtype(rows_TH)
    tensors = rows_TH, fc1_weight, fc1_bias, fc2_weight, fc2_bias
    operands = [tensor.to(dtype) for tensor in tensors]
    offsets_N = offsets_at_hand(offsets_N, rows_TH, fc1_weight, max_rows)
    arguments = (activation is F.gelu, buffers, max_rows, offsets_N, *operands)
    output: Tensor = _Network.apply(*arguments)  # type: ignore[no-untyped-call]
    return output


def computed_dtype(rows: Tensor) -> torch.dtype:
    """Return the type in which a linear layer computes rows: autocast's, or theirs."""
    device = rows.device.type
    if torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return rows.dtype


def offsets_at_hand(
    offsets: Tensor,
    rows: Tensor,
    weight: Tensor,
    max_rows: int | None,
    host_offsets: Tensor | None = None,
) -> Tensor:
    """Return the offsets, on the host if it must read those of rows on a GPU.

    They are copied once for all products, unless `host_offsets` are given.
    """
    if torch.compiler.is_compiling() or device_kind(rows).host_can_read:
        return offsets
    dtype = computed_dtype(rows)
    backend = backend_for(rows, weight, groups=len(weight), max_rows=max_rows, dtype=dtype)
    if backend is not ONE_BY_ONE:
        return offsets
    return offsets.cpu() if host_offsets is None else host_offsets


def _backend(first: Tensor, second: Tensor, offsets: Tensor, max_rows: int | None) -> Backend:
    if offsets.device != first.device:
        return ONE_BY_ONE
    return backend_for(first, second, groups=len(offsets), max_rows=max_rows)


class _Network(torch.autograd.Function):
    """Overwrites inner activations and their gradients in place.

    Autograd does not do so.
    """

    @staticmethod
    def forward(
        ctx: Any,
        is_gelu: bool,
        buffers: GradientBufferPool | None,
        max_rows: int | None,
        offsets: Tensor,
        *operands: Tensor,
    ) -> Tensor:
        rows, weight1, bias1, weight2, bias2 = operands
        inner = _product(rows, offsets, weight1, bias1, max_rows)
        active = F.gelu(inner) if is_gelu else inner.relu_()
        ctx.save_for_backward(offsets, rows, weight1, weight2, inner, active)
        ctx.is_gelu = is_gelu
        ctx.buffers = buffers
        ctx.max_rows = max_rows
        return _product(active, offsets, weight2, bias2, max_rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        offsets, rows, weight1, weight2, inner, active = ctx.saved_tensors
        _, _, _, _, wants_rows, *wants = ctx.needs_input_grad
        grad = grad.contiguous()
        max_rows = ctx.max_rows
        grad_weight2 = None
        if wants[2]:
            grad_weight2 = _weight_gradient(grad, active, offsets, max_rows, ctx.buffers)
        grad_bias2 = _column_sums(grad, offsets) if wants[3] else None
        grad_inner = _product(grad, offsets, weight2.transpose(1, 2), None, max_rows)
        if ctx.is_gelu:
            torch.ops.aten.gelu_backward.grad_input(grad_inner, inner, grad_input=grad_inner)
        else:
            torch.ops.aten.threshold_backward.grad_input(
                grad_inner, inner, 0, grad_input=grad_inner
            )
        grad_weight1 = None
        if wants[0]:
            grad_weight1 = _weight_gradient(grad_inner, rows, offsets, max_rows, ctx.buffers)
        grad_bias1 = _column_sums(grad_inner, offsets) if wants[1] else None
        grad_rows = None
        if wants_rows:
            grad_rows = _product(grad_inner, offsets, weight1.transpose(1, 2), None, max_rows)
        return None, None, None, None, grad_rows, grad_weight1, grad_bias1, grad_weight2, grad_bias2


def _product(
    rows: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None, max_rows: int | None
) -> Tensor:
    """Compute a product, by the operator only if there is a graph.

    Calling an operator costs as much as a small product.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        product: Tensor = _linear(rows, offsets, weight, bias, max_rows)
        return product
    return _backend(rows, weight, offsets, max_rows).linear(rows, offsets, weight, bias)


def _column_sums(grad: Tensor, offsets: Tensor) -> Tensor:
    if torch.compiler.is_compiling():
        sums: Tensor = _sum(grad, offsets)
        return sums
    return _summed(grad, offsets)


def _summed(grad: Tensor, offsets: Tensor) -> Tensor:
    at_hand = device_kind(grad).host_can_read or offsets.device != grad.device
    return (backends.sum_one_by_one if at_hand else backends.sum_in_one)(grad, offsets)


def _weight_gradient(
    grad: Tensor,
    rows: Tensor,
    offsets: Tensor,
    max_rows: int | None,
    buffers: GradientBufferPool | None,
) -> Tensor:
    if buffers is None or torch.compiler.is_compiling():
        outer: Tensor = _outer(grad, rows, offsets, max_rows)
        return outer
    return _backend(grad, rows, offsets, max_rows).outer(grad, rows, offsets, buffers.new_empty)


@torch.library.custom_op("mtmoe::grouped_linear", mutates_args=())
def _linear(
    rows: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None, max_rows: int | None
) -> Tensor:
    return _backend(rows, weight, offsets, max_rows).linear(rows, offsets, weight, bias)


@torch.library.custom_op("mtmoe::grouped_outer", mutates_args=())
def _outer(grad: Tensor, rows: Tensor, offsets: Tensor, max_rows: int | None) -> Tensor:
    """Return the gradient of the weights, (N, O, I), by sums over each group's rows."""
    return _backend(grad, rows, offsets, max_rows).outer(grad, rows, offsets, Tensor.new_empty)


@torch.library.custom_op("mtmoe::grouped_sum", mutates_args=())
def _sum(grad: Tensor, offsets: Tensor) -> Tensor:
    """Return the gradient of the biases, (N, O): the sum over each group's rows."""
    return _summed(grad, offsets)


@_linear.register_fake
def _(
    rows: Tensor, offsets: Tensor, weight: Tensor, bias: Tensor | None, max_rows: int | None
) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


@_outer.register_fake
def _(grad: Tensor, rows: Tensor, offsets: Tensor, max_rows: int | None) -> Tensor:
    return grad.new_empty(offsets.shape[0], grad.shape[1], rows.shape[1])


@_sum.register_fake
def _(grad: Tensor, offsets: Tensor) -> Tensor:
    return grad.new_empty(offsets.shape[0], grad.shape[1])


def _remember(
    ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, int | None], output: Tensor
) -> None:
    rows, offsets, weight, _, max_rows = inputs
    ctx.save_for_backward(rows, offsets, weight)
    ctx.max_rows = max_rows


def _backward(
    ctx: Any, grad: Tensor
) -> tuple[Tensor | None, None, Tensor | None, Tensor | None, None]:
    rows, offsets, weight = ctx.saved_tensors
    wants_rows, _, wants_weight, wants_bias, _ = ctx.needs_input_grad
    grad = grad.contiguous()
    grad_rows = grad_weight = grad_bias = None
    if wants_rows:
        grad_rows = _linear(grad, offsets, weight.transpose(1, 2), None, ctx.max_rows)
    if wants_weight:
        grad_weight = _outer(grad, rows, offsets, ctx.max_rows)
    if wants_bias:
        grad_bias = _sum(grad, offsets)
    return grad_rows, None, grad_weight, grad_bias, None


_linear.register_autograd(_backward, setup_context=_remember)
