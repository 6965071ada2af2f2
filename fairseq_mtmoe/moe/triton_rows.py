"""Triton kernels of dispatch and combine; `dispatch.py` has the same operations in torch."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_mtmoe.moe.one_kernel import FORMS

MOST_COUNTED = 2**15  # tokens; above it sorting is cheaper than counting
TILE, CHUNK = 64, 128  # tokens of a program, and tokens that it compares with them at a time
COLUMNS = 1024


@triton.jit
@no_type_check
def _sorted(
    expert_of, token_of, row_of, ends, num_tokens, num_experts, token_programs,
    TOKENS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Find the rows of some tokens; the last programs find the offsets of some experts."""
    program = tl.program_id(0)
    is_of_tokens = program < token_programs
    index = tl.where(is_of_tokens, program, program - token_programs) * TOKENS + tl.arange(0, TOKENS)
    # Rows are ordered by expert, then by token: a token's row is the number of lower keys.
    tokens = tl.where(is_of_tokens, num_tokens, 0)
    expert = tl.load(expert_of + index, mask=index < tokens, other=0).to(tl.int32)
    key = tl.where(is_of_tokens, expert * num_tokens + index, (index + 1) * num_tokens)
    before = tl.zeros((TOKENS,), tl.int32)
    for start in range(0, num_tokens, CHUNK):  # T² comparisons, on all of the GPU
        other = start + tl.arange(0, CHUNK)
        theirs = tl.load(expert_of + other, mask=other < num_tokens, other=0).to(tl.int32) * num_tokens + other
        before += tl.sum(((theirs[None, :] < key[:, None]) & (other < num_tokens)[None, :]).to(tl.int32), 1)
    tl.store(row_of + index, before.to(tl.int64), mask=index < tokens)
    tl.store(token_of + before, index.to(tl.int64), mask=index < tokens)
    tl.store(ends + index, before, mask=index < tl.where(is_of_tokens, 0, num_experts))


def sorted_by_expert(expert_T: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    num_tokens = len(expert_T)
    if num_tokens > MOST_COUNTED or num_tokens == 0:
        return FORMS["sorted_by_expert"].in_torch(expert_T, num_experts)  # type: ignore[no-any-return]
    token_T, row_T = torch.empty_like(expert_T), torch.empty_like(expert_T)
    ends_N = expert_T.new_empty(num_experts, dtype=torch.int32)
    of_tokens = triton.cdiv(num_tokens, TILE)
    with torch.cuda.device_of(expert_T):  # type: ignore[no-untyped-call]
        _sorted[(of_tokens + triton.cdiv(num_experts, TILE),)](
            expert_T.contiguous(), token_T, row_T, ends_N, num_tokens, num_experts, of_tokens, TOKENS=TILE, CHUNK=CHUNK
        )
    return token_T, row_T, ends_N


@triton.jit
@no_type_check
def _scale(gate, blend, token, uniform, HAS_BLEND: tl.constexpr):
    """Return a token's scale, and its derivatives by the gate and the blend."""
    by_gate = tl.load(gate + token).to(tl.float32)
    if HAS_BLEND:
        share = tl.load(blend).to(tl.float32)
        excess = by_gate / uniform - 1
        return 1 + share * excess, share / uniform, excess
    return by_gate, 1.0, 0.0


@triton.jit
@no_type_check
def _combined(
    rows, row_of, gate, blend, out, uniform, width, HAS_BLEND: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """Write one token's row times its scale."""
    token = tl.program_id(0)
    scale, _, _ = _scale(gate, blend, token, uniform, HAS_BLEND)
    rows += tl.load(row_of + token) * width
    out += token.to(tl.int64) * width
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        value = tl.load(rows + column, mask=column < width, other=0.0).to(tl.float32)
        tl.store(out + column, (value * scale).to(out.dtype.element_ty), mask=column < width)


@triton.jit
@no_type_check
def _combined_backward(
    grad, rows, row_of, gate, blend, grad_rows, grad_gate, grad_blend, uniform, width,
    HAS_BLEND: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write one token's gradients of row and gate, and its part of the blend's."""
    token = tl.program_id(0)
    scale, by_gate, by_blend = _scale(gate, blend, token, uniform, HAS_BLEND)
    row = tl.load(row_of + token) * width
    grad += token.to(tl.int64) * width
    total = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, width, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        value = tl.load(grad + column, mask=column < width, other=0.0).to(tl.float32)
        total += value * tl.load(rows + row + column, mask=column < width, other=0.0).to(tl.float32)
        tl.store(grad_rows + row + column, (value * scale).to(grad_rows.dtype.element_ty), mask=column < width)
    of_scale = tl.sum(total, 0)
    tl.store(grad_gate + token, of_scale * by_gate)
    tl.store(grad_blend + token, of_scale * by_blend)


def combined(rows: Tensor, row_T: Tensor, gate_T: Tensor, blend: Tensor | None, uniform: float) -> Tensor:
    rows = rows.contiguous()
    out = torch.empty_like(rows)
    if out.numel() > 0:
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
            _combined[(len(rows),)](
                rows, row_T, gate_T.contiguous(), gate_T if blend is None else blend, out, uniform, rows.shape[1],
                HAS_BLEND=blend is not None, COLUMNS=_columns(rows),
            )  # fmt: skip
    return out


def combined_backward(
    grad: Tensor, rows: Tensor, row_T: Tensor, gate_T: Tensor, blend: Tensor | None, uniform: float
) -> tuple[Tensor, Tensor, Tensor]:
    grad, rows = grad.contiguous(), rows.contiguous()
    grad_rows = torch.empty_like(rows)
    grad_gate_T, grad_blend_T = torch.empty_like(gate_T), torch.empty_like(gate_T)
    if grad.numel() > 0:
        with torch.cuda.device_of(rows):  # type: ignore[no-untyped-call]
            _combined_backward[(len(rows),)](
                grad, rows, row_T, gate_T.contiguous(), gate_T if blend is None else blend, grad_rows, grad_gate_T,
                grad_blend_T, uniform, rows.shape[1], HAS_BLEND=blend is not None, COLUMNS=_columns(rows),
            )  # fmt: skip
    return grad_rows, grad_gate_T, grad_blend_T


def _columns(rows: Tensor) -> int:
    return min(int(triton.next_power_of_2(rows.shape[1])), COLUMNS)
