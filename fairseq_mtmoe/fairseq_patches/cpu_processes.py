"""What fairseq does by way of GPUs though a run computes on CPUs: where there are none, or beside them with `--cpu`.

With `--ddp-backend pytorch_ddp`, its default, fairseq names a GPU for modules on the CPU, which torch refuses; what is
no tensor goes from process to process by way of GPUs only; and the norm of all gradients goes to a GPU wherever there
is one, where it cannot be multiplied with gradients on the CPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from fairseq import utils
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


def data_parallel(module: nn.Module, **options: Any) -> DistributedDataParallel:
    """torch's wrapper with fairseq's options; a module on the CPU gets no device."""
    if all(parameter.device.type == "cpu" for parameter in module.parameters()):
        options |= {"device_ids": None, "output_device": None}
    return DistributedDataParallel(module, **options)


def from_cpus(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """fairseq's `all_gather_list` by way of GPUs only where NCCL joins the processes."""

    def all_gather_list(data: Any, group: Any = None, max_size: int = 16384) -> list[Any]:
        """As fairseq's: the data of all processes, which it sends by GPU."""
        if dist.get_backend(group) == "nccl":
            return original(data, group, max_size)
        gathered: list[Any] = [None] * dist.get_world_size(group)
        data = utils.move_to_cpu(data) if torch.cuda.is_available() else data
        dist.all_gather_object(gathered, data, group=group)
        return gathered

    return all_gather_list


def beside_gpus(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """fairseq's `clip_grad_norm_`, whose norm is where the gradients are."""

    def clip_grad_norm_(params: Any, max_norm: float, aggregate_norm_fn: Any = None) -> Tensor:
        """As fairseq's: scale gradients so that the norm of all but experts' is at most `max_norm`; returns it."""
        params = [params] if isinstance(params, Tensor) else list(params)
        given = [parameter for parameter in params if getattr(parameter, "grad", None) is not None]
        shared = [parameter.grad.detach() for parameter in given if not hasattr(parameter, "expert")]
        if not shared or not torch.cuda.is_available() or any(gradient.is_cuda for gradient in shared):
            return original(params, max_norm, aggregate_norm_fn)
        norm: Tensor = torch.stack([torch.norm(gradient, p=2, dtype=torch.float32) for gradient in shared]).norm()
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            scale = (max_norm / (norm + 1e-6)).clamp_(max=1)
            torch._foreach_mul_([parameter.grad.detach() for parameter in given], scale)
        return norm

    return clip_grad_norm_
