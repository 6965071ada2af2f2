"""The choice of softmax gates, in torch and on a GPU in one Triton kernel, forward and backward.

Switch's and MT-TaG's gates choose the most probable expert. Switch's balance loss, `N · Σ_e f_e · P_e`, needs sums over
all tokens: the choosing kernel writes them for each tile of tokens, and another kernel adds them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fairseq_mtmoe.moe.one_kernel import one_kernel, uses_triton

TILE = 64  # tokens of a program
MOST_EXPERTS = 256  # a program keeps the logits of a tile in registers


def is_one_kernel(logits_TN: Tensor) -> bool:
    """Return whether the kernel runs for these logits, and is faster than torch."""
    return logits_TN.shape[1] <= MOST_EXPERTS and uses_triton(logits_TN)


def softmax_choice(
    logits_TN: Tensor, padding_T: Tensor | None, balances: bool = False
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return tokens' highest probability, (T,), expert (N: padding), and balance loss.
    The loss is None unless it `balances`.
    """
    choice: tuple[Tensor, Tensor, Tensor | None] = _Choice.apply(logits_TN, padding_T, balances)  # type: ignore[no-untyped-call]
    return choice


class _Choice(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_TN: Tensor, padding_T: Tensor | None, balances: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        share_TN, gate_T, expert_T, parts = chosen(logits_TN, padding_T, balances)
        loss, pull_N = balance(parts) if balances else (None, None)
        ctx.mark_non_differentiable(expert_T)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(share_TN, expert_T, pull_N)
        return gate_T, expert_T, loss

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_gate_T: Tensor | None, _: None, grad_loss: Tensor | None
    ) -> tuple[Tensor | None, None, None]:
        share_TN, expert_T, pull_N = ctx.saved_tensors
        if grad_gate_T is None and grad_loss is None:
            return None, None, None
        pull_N = None if grad_loss is None else pull_N
        grad_logits_TN: Tensor = chosen_backward(share_TN, expert_T, grad_gate_T, grad_loss, pull_N)
        return grad_logits_TN, None, None


def _example_of_logits(device: torch.device) -> tuple[Tensor, Tensor, bool]:
    token_T = torch.arange(70, device=device)
    logits_TN = torch.linspace(-1, 1, 70 * 5, device=device).view(70, 5).clone()
    logits_TN[token_T, token_T**2 % 5] += 2
    return logits_TN, token_T % 7 == 6, True


@one_kernel(
    "(Tensor logits_TN, Tensor? padding_T, bool balances) -> (Tensor, Tensor, Tensor, Tensor)",
    "triton_gates:chosen",
    _example_of_logits,
)
def chosen(logits_TN: Tensor, padding_T: Tensor | None, balances: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return probabilities, (T, N), each token's highest, its expert, and sums of tiles.

    The sums, (tiles, 2, N), are each expert's number of tokens and sum of probabilities; empty without `balances`.
    """
    share_TN = logits_TN.softmax(1)
    gate_T, expert_T = share_TN.max(1)
    num_tokens, num_experts = share_TN.shape
    if padding_T is not None:
        expert_T = expert_T.masked_fill(padding_T, num_experts)
    if not balances:
        return share_TN, gate_T, expert_T, share_TN.new_empty(0, 2, num_experts)
    load_TN = (expert_T.unsqueeze(1) == torch.arange(num_experts, device=expert_T.device)).float()
    share_of_real_TN = share_TN * (expert_T < num_experts).unsqueeze(1)
    tiles = -(-num_tokens // TILE)
    both = F.pad(torch.stack([load_TN, share_of_real_TN], 1), (0, 0, 0, 0, 0, tiles * TILE - num_tokens))
    return share_TN, gate_T, expert_T, both.view(tiles, TILE, 2, num_experts).sum(1)


@one_kernel(
    "(Tensor parts) -> (Tensor, Tensor)",
    "triton_gates:balance",
    lambda device: (chosen.in_torch(*_example_of_logits(device))[3],),
)
def balance(parts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the balance loss, (), and its derivatives by a token's probabilities, (N,)."""
    load_N, share_N = parts.sum(0)
    num_tokens = load_N.sum().clamp(min=1)
    pull_N = len(load_N) * load_N / num_tokens.square()
    return (pull_N * share_N).sum(), pull_N


def _example_of_gradients(device: torch.device) -> tuple[Tensor, ...]:
    share_TN, gate_T, expert_T, parts = chosen.in_torch(*_example_of_logits(device))
    return share_TN, expert_T, gate_T.cos(), torch.full((), 0.7, device=device), balance.in_torch(parts)[1]


@one_kernel(
    "(Tensor share_TN, Tensor expert_T, Tensor? grad_gate_T, Tensor? grad_loss, Tensor? pull_N) -> Tensor",
    "triton_gates:chosen_backward",
    _example_of_gradients,
)
def chosen_backward(
    share_TN: Tensor, expert_T: Tensor, grad_gate_T: Tensor | None, grad_loss: Tensor | None, pull_N: Tensor | None
) -> Tensor:
    """Return the gradient of the logits, (T, N); 0 at padding."""
    real_T1 = (expert_T < share_TN.shape[1]).unsqueeze(1)
    own_TN = expert_T.unsqueeze(1) == torch.arange(share_TN.shape[1], device=expert_T.device)
    grad_TN = torch.zeros_like(share_TN) if grad_gate_T is None else own_TN * grad_gate_T.unsqueeze(1)
    if grad_loss is not None and pull_N is not None:
        grad_TN = grad_TN + real_T1 * (grad_loss * pull_N)
    return share_TN * (grad_TN - (grad_TN * share_TN).sum(1, keepdim=True))


def _example_of_tasks(device: torch.device) -> tuple[Tensor, Tensor, int]:
    task_B = torch.arange(100, device=device) % 4
    return task_B, (torch.arange(300, device=device) % 100 % 4 == 3) | (torch.arange(300, device=device) > 250), 3


@one_kernel(
    "(Tensor task_B, Tensor? padding_T, int num_tasks) -> (Tensor, Tensor)", "triton_gates:tasks", _example_of_tasks
)
def tasks_in_range(task_B: Tensor, padding_T: Tensor | None, num_tasks: int) -> tuple[Tensor, Tensor]:
    """Return clamped tasks, (B,), and whether all were in range, except at padding."""
    wrong_B = (task_B < 0) | (task_B >= num_tasks)
    if padding_T is not None:
        wrong_B = wrong_B & ~padding_T.view(-1 if len(task_B) else 0, len(task_B)).all(0)
    return task_B.clamp(0, num_tasks - 1), ~wrong_B.any()
