"""Gradients of experts that several processes hold between them: their means over replicas, and one norm for all.

fairseq's `utils.clip_grad_norm_` leaves parameters with an `expert` mark out of the norm, and its flat float32 vector
has no marks. The norm here is that of all parameters of all processes, the same number on each of them and in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from fairseq_mtmoe.moe import MoELayer
from fairseq_mtmoe.moe.parallel.placement import ExpertPlacement, average_over_replicas


@dataclass(frozen=True)
class LocalExperts:
    """The trained parameters of the experts that this process holds while others hold the rest."""

    placement: ExpertPlacement
    parameters: list[nn.Parameter]

    def average(self) -> None:
        """Replace their gradients by the means over the processes that hold the same experts."""
        for parameter in self.parameters:
            if parameter.grad is None:  # every replica must bring each gradient
                parameter.grad = torch.zeros_like(parameter)
        average_over_replicas([gradient(parameter) for parameter in self.parameters], self.placement)

    def norm_with(self, shared_parameters: Iterable[nn.Parameter] | None) -> Callable[[Tensor], Tensor]:
        """A function from the norm of the shared parameters' gradients to that of all, of all processes.

        Where fairseq cannot give the former, `shared_parameters` are what it is computed from.
        """

        def norm_of_all(shared_norm: Tensor) -> Tensor:
            if shared_parameters is not None:
                shared_norm = squares(shared_parameters).sqrt().to(shared_norm)
            local = squares(self.parameters).to(shared_norm)
            dist.all_reduce(local, group=self.placement.group)
            return (shared_norm.square() + local).sqrt()

        return norm_of_all


def local_experts(layers: Iterable[MoELayer]) -> LocalExperts | None:
    """This process's experts in a model's expert layers, or None where every process holds all of them."""
    banks = [layer.experts for layer in layers if layer.experts.placement.is_sharded]
    if not banks:
        return None
    parameters = [parameter for bank in banks for parameter in bank.parameters() if parameter.requires_grad]
    return LocalExperts(banks[0].placement, parameters)


def clip_all(optimizer: Any, experts: LocalExperts, max_norm: float) -> Tensor:
    """Average the experts' gradients and clip all gradients to `max_norm` (0: not at all).

    It takes the model's own gradients, which fairseq's half-precision optimizers have not yet copied to float32.

    Returns:
        the norm of all gradients, with fairseq's scales undone, the same number in every process.
    """
    experts.average()
    shared = None
    if getattr(optimizer, "has_flat_params", False):
        local = set(experts.parameters)
        shared = [parameter for parameter in optimizer.fp16_params if parameter not in local]
    norm: Tensor = optimizer.clip_grad_norm(max_norm, aggregate_norm_fn=experts.norm_with(shared))
    return norm


def squares(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The sum of the squares of all elements of their gradients, in float32."""
    gradients = [gradient(parameter) for parameter in parameters if parameter.grad is not None]
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32) if gradients else [torch.zeros(())]
    return torch.stack(list(norms)).square().sum()


def gradient(parameter: nn.Parameter) -> Tensor:
    """A parameter's gradient, which there is."""
    assert parameter.grad is not None
    return parameter.grad.detach()
