"""Dispatchers: they group tokens by expert, and restore their order after the experts.

A dispatcher has no parameters. `LocalDispatcher` sorts tokens by expert if one process holds all experts;
`parallel/all_to_all_dispatcher.py` is for sharded experts. Each expert reads its slice of the sorted rows without a
copy, balanced or not, and all shapes are known before the routing.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fairseq_mtmoe.moe.device_kind import device_kind
from fairseq_mtmoe.moe.one_kernel import one_kernel, uses_triton


@dataclass(frozen=True, kw_only=True)
class DispatchPlan:
    """The experts' rows; subclasses add the data that their dispatcher needs to combine.

    Attributes:
        offsets_N: end of the rows of each local expert; rows without an expert come last.
        max_rows: upper bound of an expert's number of rows, if known without synchronisation.
        host_offsets_N: `offsets_N` on the host, if known there.
    """

    offsets_N: Tensor
    max_rows: int | None = None
    host_offsets_N: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class LocalPlan(DispatchPlan):
    """The order of a rank's sorted tokens: token of each row, row of each token."""

    token_T: Tensor
    row_T: Tensor


@dataclass(frozen=True)
class Scale:
    """The scale of outputs: `gate_T`, or `1 + blend·(gate_T / uniform - 1)`.

    Attributes:
        gate_T: the gate value of each token, (T,), float32.
        blend: a scalar, (), of any floating type.
        uniform: above 0.
    """

    gate_T: Tensor
    blend: Tensor | None = None
    uniform: float = 1.0

    def of_tokens(self) -> Tensor:
        """Return the scale of each token, (T,)."""
        return _scales(self.gate_T, self.blend, self.uniform)


def _scales(gate_T: Tensor, blend: Tensor | None, uniform: float) -> Tensor:
    return gate_T if blend is None else 1 + blend.float() * (gate_T / uniform - 1)


Plan = TypeVar("Plan", bound=DispatchPlan)


class Dispatcher(ABC, Generic[Plan]):
    """Sends tokens to their experts and back, wherever the experts are."""

    @abstractmethod
    def dispatch(
        self, x_TH: Tensor, expert_T: Tensor, max_rows: int | None = None, arriving_PE: Tensor | None = None
    ) -> tuple[Tensor, Plan]:
        """Return the sorted rows of this rank's experts, (S, H), and the plan.

        Padding has an `expert_T` of N or more. `max_rows` and `arriving_PE` (see `Routing`) save a communication.
        """

    @abstractmethod
    def combine(self, rows_SH: Tensor, plan: Plan, scale: Scale | None = None) -> Tensor:
        """Return outputs in the tokens' order, times the tokens' scale, if given: (T, H)."""


class LocalDispatcher(Dispatcher[LocalPlan]):
    """Sorts the T tokens by expert, stably and without synchronisation."""

    def __init__(self, num_experts: int) -> None:
        self.num_experts = num_experts

    def dispatch(
        self, x_TH: Tensor, expert_T: Tensor, max_rows: int | None = None, arriving_PE: Tensor | None = None
    ) -> tuple[Tensor, LocalPlan]:
        token_T, row_T, offsets_N = sorted_by_expert(expert_T, self.num_experts)
        plan = LocalPlan(offsets_N=offsets_N, max_rows=max_rows, token_T=token_T, row_T=row_T)
        return _reordered(x_TH, token_T, row_T), plan

    def combine(self, rows_SH: Tensor, plan: LocalPlan, scale: Scale | None = None) -> Tensor:
        if scale is None:
            return _reordered(rows_SH, plan.row_T, plan.token_T)
        if uses_triton(rows_SH):
            scaled = _Combined.apply(rows_SH, scale.gate_T, scale.blend, scale.uniform, plan.row_T)  # type: ignore[no-untyped-call]
        else:
            scaled = _Scaled.apply(rows_SH, scale.of_tokens(), plan.row_T, plan.token_T)  # type: ignore[no-untyped-call]
        return scaled  # type: ignore[no-any-return]


def _example_of_experts(device: torch.device) -> tuple[Tensor, int]:
    return torch.arange(150, device=device) ** 2 % 7, 6


@one_kernel(
    "(Tensor expert_T, int num_experts) -> (Tensor, Tensor, Tensor)",
    "triton_rows:sorted_by_expert",
    _example_of_experts,
)
def sorted_by_expert(expert_T: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the token of each row, the row of each token, (T,), and offsets, (N,)."""
    sorted_T, token_T = expert_T.sort(stable=True)
    row_T = torch.empty_like(token_T).scatter(0, token_T, torch.arange(len(token_T), device=token_T.device))
    expert_N = torch.arange(num_experts, device=token_T.device)
    # A GPU's grouped product takes int32.
    is_short = not device_kind(expert_T).can_sync
    return token_T, row_T, torch.searchsorted(sorted_T, expert_N, right=True, out_int32=is_short)


def _reordered(rows: Tensor, order: Tensor, order_back: Tensor) -> Tensor:
    reordered: Tensor = _Reordered.apply(rows, order, order_back)  # type: ignore[no-untyped-call]
    return reordered


class _Reordered(torch.autograd.Function):
    """Reorders rows; the backward pass restores their order without a sum."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, order: Tensor, order_back: Tensor) -> Tensor:
        ctx.save_for_backward(order_back)
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (order_back,) = ctx.saved_tensors
        return grad.index_select(0, order_back), None, None


class _Scaled(torch.autograd.Function):
    """Reorders and scales rows in one pass over memory."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, scale: Tensor, order: Tensor, order_back: Tensor) -> Tensor:
        ctx.save_for_backward(rows, scale, order, order_back)
        return rows.index_select(0, order).mul_(scale.unsqueeze(1))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        rows, scale, order, order_back = ctx.saved_tensors
        grad_rows, grad_scale = grad.index_select(0, order_back), None
        if ctx.needs_input_grad[1]:
            grad_scale = torch.linalg.vecdot(grad_rows.to(scale.dtype), rows.to(scale.dtype)).index_select(0, order)
        grad_rows.mul_(scale.index_select(0, order_back).unsqueeze(1))
        return grad_rows, grad_scale, None, None


def _example_of_rows(device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    rows = torch.linspace(-1, 1, 9 * 40, device=device).view(9, 40)
    gate_T = torch.linspace(0.1, 0.9, 9, device=device)
    return rows, torch.arange(9, device=device).flip(0), gate_T, torch.full((), 0.5, device=device), 0.25


@one_kernel(
    "(Tensor rows, Tensor row_T, Tensor gate_T, Tensor? blend, float uniform) -> Tensor",
    "triton_rows:combined",
    _example_of_rows,
)
def combined(rows: Tensor, row_T: Tensor, gate_T: Tensor, blend: Tensor | None, uniform: float) -> Tensor:
    """Return the tokens' rows, each times its token's scale; see `Scale`."""
    return rows.index_select(0, row_T).mul_(_scales(gate_T, blend, uniform).unsqueeze(1))


@one_kernel(
    "(Tensor grad, Tensor rows, Tensor row_T, Tensor gate_T, Tensor? blend, float uniform) -> (Tensor, Tensor, Tensor)",
    "triton_rows:combined_backward",
    lambda device: (_example_of_rows(device)[0].flip(1), *_example_of_rows(device)),
)
def combined_backward(
    grad: Tensor, rows: Tensor, row_T: Tensor, gate_T: Tensor, blend: Tensor | None, uniform: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of rows and gates, and each token's part of the blend's, (T,).

    The last one is 0 without a blend.
    """
    own_rows = rows.index_select(0, row_T)
    scaled = (grad.float() * _scales(gate_T, blend, uniform).unsqueeze(1)).to(rows.dtype)
    grad_scale_T = torch.linalg.vecdot(grad.float(), own_rows.float())
    grad_rows = torch.empty_like(rows).index_copy(0, row_T, scaled)
    if blend is None:
        return grad_rows, grad_scale_T, torch.zeros_like(gate_T)
    return grad_rows, grad_scale_T * (blend.float() / uniform), grad_scale_T * (gate_T / uniform - 1)


class _Combined(torch.autograd.Function):
    """Reorders and scales rows, computing the scale in the same kernel."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, gate_T: Tensor, blend: Tensor | None, uniform: float, row_T: Tensor) -> Tensor:
        ctx.save_for_backward(rows, gate_T, blend, row_T)
        ctx.uniform = uniform
        out: Tensor = combined(rows, row_T, gate_T, blend, uniform)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, gate_T, blend, row_T = ctx.saved_tensors
        grad_rows, grad_gate_T, grad_blend_T = combined_backward(grad, rows, row_T, gate_T, blend, ctx.uniform)
        grad_blend = None if blend is None or not ctx.needs_input_grad[2] else grad_blend_T.sum().to(blend.dtype)
        return grad_rows, grad_gate_T, grad_blend, None, None
