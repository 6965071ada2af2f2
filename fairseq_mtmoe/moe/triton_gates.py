"""The Triton kernels of `softmax_choice.py`, which has the same operations in torch."""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from fairseq_mtmoe.moe.softmax_choice import TILE

INFINITE = tl.constexpr(float("inf"))
SENTENCES, LENGTH = 128, 32  # sentences and positions that a program reads together


@triton.jit
@no_type_check
def _chosen(
    logits, padding, shares, gates, expert_of, parts, num_tokens, num_experts,
    HAS_PADDING: tl.constexpr, BALANCES: tl.constexpr, TOKENS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    expert = tl.arange(0, EXPERTS)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_token, is_expert = token < num_tokens, expert < num_experts
    place = token.to(tl.int64)[:, None] * num_experts + expert[None, :]
    is_logit = is_token[:, None] & is_expert[None, :]
    value = tl.load(logits + place, mask=is_logit, other=-INFINITE)
    value = tl.where(is_token[:, None], value, 0.0)
    power = tl.exp(value - tl.max(value, 1)[:, None])
    share = power / tl.sum(power, 1)[:, None]
    own = tl.minimum(tl.argmax(share, 1), num_experts - 1)
    tl.store(shares + place, share, mask=is_logit)
    tl.store(gates + token, tl.max(share, 1), mask=is_token)
    if HAS_PADDING:
        own = tl.where(tl.load(padding + token, mask=is_token, other=1) == 0, own, num_experts)
    tl.store(expert_of + token, own.to(tl.int64), mask=is_token)
    if BALANCES:
        own = tl.where(is_token, own, num_experts)
        load = tl.sum((own[:, None] == expert[None, :]).to(tl.float32), 0)
        real_share = tl.sum(tl.where((own < num_experts)[:, None], share, 0.0), 0)
        parts += tl.program_id(0) * 2 * num_experts
        tl.store(parts + expert, load, mask=is_expert)
        tl.store(parts + num_experts + expert, real_share, mask=is_expert)


def chosen(logits_TN: Tensor, padding_T: Tensor | None, balances: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    logits_TN = logits_TN.contiguous()
    num_tokens, num_experts = logits_TN.shape
    share_TN, gate_T = torch.empty_like(logits_TN), logits_TN.new_empty(num_tokens)
    expert_T = logits_TN.new_empty(num_tokens, dtype=torch.long)
    tiles = triton.cdiv(num_tokens, TILE)
    parts = logits_TN.new_empty(tiles if balances else 0, 2, num_experts)
    if num_tokens > 0:
        with torch.cuda.device_of(logits_TN):  # type: ignore[no-untyped-call]
            _chosen[(tiles,)](
                logits_TN, _bytes(padding_T, logits_TN), share_TN, gate_T, expert_T, parts, num_tokens, num_experts,
                HAS_PADDING=padding_T is not None, BALANCES=balances, TOKENS=TILE, EXPERTS=_width(num_experts),
                num_warps=8,
            )  # fmt: skip
    return share_TN, gate_T, expert_T, parts


@triton.jit
@no_type_check
def _balance(parts, loss, pulls, tiles, num_experts, EXPERTS: tl.constexpr):
    expert = tl.arange(0, EXPERTS)
    is_expert = expert < num_experts
    load, share = tl.zeros((EXPERTS,), tl.float32), tl.zeros((EXPERTS,), tl.float32)
    for _ in range(tiles):
        load += tl.load(parts + expert, mask=is_expert, other=0.0)
        share += tl.load(parts + num_experts + expert, mask=is_expert, other=0.0)
        parts += 2 * num_experts
    number = tl.maximum(tl.sum(load, 0), 1.0)
    pull = num_experts * load / (number * number)
    tl.store(pulls + expert, pull, mask=is_expert)
    tl.store(loss, tl.sum(pull * share, 0))


def balance(parts: Tensor) -> tuple[Tensor, Tensor]:
    tiles, _, num_experts = parts.shape
    loss, pull_N = parts.new_empty(()), parts.new_empty(num_experts)
    with torch.cuda.device_of(parts):  # type: ignore[no-untyped-call]
        _balance[(1,)](parts.contiguous(), loss, pull_N, tiles, num_experts, EXPERTS=_width(num_experts))
    return loss, pull_N


@triton.jit
@no_type_check
def _chosen_backward(
    shares, expert_of, grad_gates, grad_loss, pulls, out, num_tokens, num_experts,
    HAS_GATES: tl.constexpr, HAS_LOSS: tl.constexpr, TOKENS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    expert = tl.arange(0, EXPERTS)
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_token, is_expert = token < num_tokens, expert < num_experts
    place = token.to(tl.int64)[:, None] * num_experts + expert[None, :]
    is_logit = is_token[:, None] & is_expert[None, :]
    share = tl.load(shares + place, mask=is_logit, other=0.0)
    own = tl.load(expert_of + token, mask=is_token, other=0)
    grad = tl.zeros((TOKENS, EXPERTS), tl.float32)
    if HAS_GATES:
        of_gate = tl.load(grad_gates + token, mask=is_token, other=0.0)
        grad = tl.where(own[:, None] == expert[None, :], of_gate[:, None], grad)
    if HAS_LOSS:
        pull = tl.load(grad_loss) * tl.load(pulls + expert, mask=is_expert, other=0.0)
        grad += tl.where((own < num_experts)[:, None], pull[None, :], 0.0)
    grad = tl.where(is_logit, grad, 0.0)
    tl.store(out + place, share * (grad - tl.sum(grad * share, 1)[:, None]), mask=is_logit)


def chosen_backward(
    share_TN: Tensor, expert_T: Tensor, grad_gate_T: Tensor | None, grad_loss: Tensor | None, pull_N: Tensor | None
) -> Tensor:
    num_tokens, num_experts = share_TN.shape
    out = torch.empty_like(share_TN)
    has_loss = grad_loss is not None and pull_N is not None
    if num_tokens > 0:
        with torch.cuda.device_of(share_TN):  # type: ignore[no-untyped-call]
            _chosen_backward[(triton.cdiv(num_tokens, TILE),)](
                share_TN, expert_T, share_TN if grad_gate_T is None else grad_gate_T.contiguous(),
                grad_loss if has_loss else share_TN, pull_N if has_loss else share_TN, out, num_tokens, num_experts,
                HAS_GATES=grad_gate_T is not None, HAS_LOSS=has_loss, TOKENS=TILE, EXPERTS=_width(num_experts),
                num_warps=8,
            )  # fmt: skip
    return out


@triton.jit
@no_type_check
def _tasks(
    tasks, padding, out, is_right, sentences, length, num_tasks,
    HAS_PADDING: tl.constexpr, SENTENCES: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    wrong = tl.zeros((SENTENCES,), tl.int32)
    for first in range(0, sentences, SENTENCES):
        sentence = first + tl.arange(0, SENTENCES)
        is_sentence = sentence < sentences
        task = tl.load(tasks + sentence, mask=is_sentence, other=0)
        is_wrong = ((task < 0) | (task >= num_tasks)).to(tl.int32)
        if HAS_PADDING:
            real = tl.zeros((SENTENCES,), tl.int32)
            for start in range(0, length, LENGTH):
                position = start + tl.arange(0, LENGTH)
                is_place = (position < length)[:, None] & is_sentence[None, :]
                place = padding + position.to(tl.int64)[:, None] * sentences + sentence[None, :]
                real += tl.sum((tl.load(place, mask=is_place, other=1) == 0).to(tl.int32), 0)
            is_wrong = tl.where(real > 0, is_wrong, 0)
        wrong += is_wrong
        tl.store(out + sentence, tl.minimum(tl.maximum(task, 0), num_tasks - 1), mask=is_sentence)
    tl.store(is_right, (tl.sum(wrong, 0) == 0).to(tl.int8))


def tasks(task_B: Tensor, padding_T: Tensor | None, num_tasks: int) -> tuple[Tensor, Tensor]:
    task_B = task_B.contiguous()
    out, is_right = torch.empty_like(task_B), task_B.new_empty((), dtype=torch.bool)
    length = 0 if padding_T is None or len(task_B) == 0 else len(padding_T) // len(task_B)
    with torch.cuda.device_of(task_B):  # type: ignore[no-untyped-call]
        _tasks[(1,)](
            task_B, _bytes(padding_T, task_B), out, is_right.view(torch.int8), len(task_B), length, num_tasks,
            HAS_PADDING=padding_T is not None, SENTENCES=SENTENCES, LENGTH=LENGTH,
        )  # fmt: skip
    return out, is_right


def _bytes(padding_T: Tensor | None, otherwise: Tensor) -> Tensor:
    return otherwise if padding_T is None else padding_T.contiguous().view(torch.uint8)


def _width(num_experts: int) -> int:
    return max(int(triton.next_power_of_2(num_experts)), 2)
